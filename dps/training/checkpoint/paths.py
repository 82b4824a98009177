"""The directories at a checkpoint path: which are checkpoints, and which may be removed.

A checkpoint is a real directory named ``<number>-<run>`` with the files of `checkpoint.files`. A
run is a fit and all fits that resume it. Everything else at the path belongs to others: dps does
not read, count or remove it.

dps removes a directory only if it holds nothing but files of a checkpoint and this fit knows its
run: the run is its own, this fit has read one of its manifests (`files.known_runs`), or the lock of
a dead process names it (`lock.PathLock`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dps.files.directories import MANIFEST, file_system, os_errors, read_manifest

#: Kind of the manifest of a checkpoint.
CHECKPOINT = "checkpoint"

#: Kinds of snapshots: after the last epoch, after the best one, within the next one.
LAST, BEST, WITHIN = "last", "best", "within"
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{8,})")
_ARRAYS = rf"arrays-[0-9a-f]{{16}}\.safetensors|part-(?:{LAST}|{BEST}|{WITHIN})-[\d-]+\.safetensors"
_HAS_ARRAYS = re.compile(_ARRAYS)
#: Names of a checkpoint's files, and of temporary files that a crash leaves behind.
_OURS = re.compile(rf"(?:{_ARRAYS}|manifest\.json)|\.(?:{_ARRAYS}|manifest\.json)\.[0-9a-f]{{32}}")


@dataclass(frozen=True)
class CheckpointDir:
    """The directory of one checkpoint."""

    path: str  # the checkpoint path
    number: int
    run: str

    @property
    def directory(self) -> str:
        """Path of the directory."""
        return f"{self.path}/{self.number:06d}-{self.run}"

    def after(self) -> CheckpointDir:
        """The next checkpoint's directory."""
        return CheckpointDir(self.path, self.number + 1, self.run)

    def is_written(self) -> bool:
        """True if the manifest exists; the checkpoint may be damaged nevertheless."""
        names = {name for name, _ in _entries(self.directory)}
        if MANIFEST not in names or not any(map(_HAS_ARRAYS.fullmatch, names)):
            return False
        try:
            content = read_manifest(self.directory)
        except (OSError, ValueError):
            return True
        return isinstance(content, dict) and content.get("kind") == CHECKPOINT


def _entries(path: str) -> list[tuple[str, bool]]:
    """Return the names in a directory, each with whether it is a regular file."""
    _, fs, root = file_system(path)
    try:
        with os_errors(path):
            found = fs.ls(root, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(_name(each), each["type"] == "file" and not each.get("islink")) for each in found]


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def places(path: str) -> list[CheckpointDir]:
    """Return the directories at a path that have a checkpoint's name, newest first."""
    _, fs, root = file_system(path)
    with os_errors(path):
        found = fs.ls(root, detail=True) if fs.exists(root) else []
    own = (each for each in found if each["type"] == "directory" and not each.get("islink"))
    matches = filter(None, map(_NAME.fullmatch, map(_name, own)))
    numbered = sorted(((int(match[1]), match[2]) for match in matches), reverse=True)
    return [CheckpointDir(path, number, run) for number, run in numbered]


def number_of_next(path: str, known: Collection[str]) -> int:
    """Return a number above all checkpoint numbers at a path."""
    return 1 + max(
        (each.number for each in places(path) if each.run in known or each.is_written()),
        default=0,
    )


def clear(newest: CheckpointDir, keep: int, known: Collection[str]) -> None:
    """Remove the checkpoints that the newest complete one supersedes.

    These are the checkpoints of known runs, except the last `keep` complete ones and later ones of
    its own run.
    """
    kept = 0
    for place in places(newest.path):
        if place.run == newest.run and (
            place.number > newest.number or (kept < keep and place.is_written())
        ):
            kept += place.number <= newest.number
        elif place.run in known:
            remove(place)


def remove(place: CheckpointDir) -> None:
    """Remove a checkpoint of a known run, complete or not, if it holds no other files.

    The manifest is removed first, so that a half-removed checkpoint does not count as damaged.
    """
    found = _entries(place.directory)
    if not all(plain and _OURS.fullmatch(name) for name, plain in found):
        return
    _, fs, root = file_system(place.directory)
    for name in sorted((name for name, _ in found), key=lambda name: (name != MANIFEST, name)):
        with contextlib.suppress(FileNotFoundError):
            fs.rm_file(f"{root}/{name}")
    with contextlib.suppress(OSError):  # object stores have no directories
        fs.rmdir(root)
