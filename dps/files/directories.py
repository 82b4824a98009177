"""A directory with arrays and a manifest, on any file system, written atomically.

The arrays are safetensors in a file that is named by its digest. The manifest is JSON; it is
written last, and replaces an older one in one step, so that a reader finds the old or the new
state. Other processes may have written parts into the directory before; the content of the manifest
then names them with their digests.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dps._typing import PathLike

#: Version of the layout of files and of the manifest.
_VERSION = 1
_FORMAT = "dps"
MANIFEST = "manifest.json"
_OURS = re.compile(r"manifest\.json|arrays-[0-9a-f]{16}\.safetensors|part-[\w-]+\.safetensors|\..*")
#: Replaces a file by another one in one step.
_replace = os.replace
_DIGEST = re.compile(r"[0-9a-f]{64}")
#: Largest manifest that is read, in bytes.
_LONGEST_MANIFEST = 1 << 30


#: Names of dtypes in safetensors.
_NAMES = {
    "b1": "BOOL", "i1": "I8", "u1": "U8", "i2": "I16", "u2": "U16", "i4": "I32", "u4": "U32",
    "i8": "I64", "u8": "U64", "f2": "F16", "f4": "F32", "f8": "F64",
}  # fmt: skip


@dataclass(frozen=True)
class StoredFile:
    """A file of arrays beside a manifest."""

    name: str  # name of the file; it begins with ``part-``
    sha256: str
    bytes: int


def write_directory(path: PathLike, content: object, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a directory, or replace an older one.

    path: a directory, with a protocol unless it is local.
    arrays: mapping of str to array.
    Raises FileExistsError: there is a file with that name, or a directory with other files.
    """
    shown, fs, root = file_system(path)
    found = names_in(fs, root) if fs.exists(root) else []
    before = _named_arrays(fs, root) if MANIFEST in found else None
    if fs.isfile(root):
        raise FileExistsError(f"{shown} is a file: give the path of a directory")
    others = sorted(name for name in found if not _OURS.fullmatch(name))
    if others:
        raise FileExistsError(f"{shown} holds other files, such as {others[0]!r}: give a new path")
    fs.makedirs(root, exist_ok=True)
    digest, count = write_file(fs, root, _arrays_file, _chunks(arrays))
    manifest = {
        "format": _FORMAT,
        "version": _VERSION,
        "arrays": {"sha256": digest, "bytes": count},
        "content": content,
    }
    text = json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1, allow_nan=False)
    kept = _arrays_file(digest)
    write_file(fs, root, MANIFEST, [text.encode()])
    # Other files may belong to another writer, whose manifest will follow.
    if before in found and before != kept:
        with contextlib.suppress(FileNotFoundError):  # another writer has replaced it, too
            fs.rm_file(f"{root}/{before}")


def read_directory(path: PathLike) -> tuple[Any, dict[str, np.ndarray]]:
    """Read a directory, after checks of its version and digests.

    Returns the content and a dict of str to array.
    Raises FileNotFoundError: the directory or one of its files is missing.
    Raises ValueError: it is damaged, or has another version.
    """
    shown, fs, root = file_system(path)
    if not fs.exists(root):
        raise FileNotFoundError(f"{shown} does not exist")
    remedy = "nothing was saved there, or not to its end: save it again"
    raw = _read(fs, shown, root, MANIFEST, remedy)
    while True:
        manifest = _manifest(raw, shown)
        expected = manifest["arrays"]["sha256"]
        try:
            data = _read(
                fs, shown, root, _arrays_file(expected), "copy the directory whole",
                manifest["arrays"]["bytes"],
            )  # fmt: skip
            break
        except FileNotFoundError:
            # Another process may have replaced the state since.
            before, raw = raw, _read(fs, shown, root, MANIFEST, remedy)
            if raw == before:
                raise
    if sha256(data).hexdigest() != expected or len(data) != manifest["arrays"]["bytes"]:
        raise _damaged(shown, f"{_arrays_file(expected)} is not what was saved")
    return manifest["content"], arrays_of(data, shown)


def read_manifest(path: PathLike) -> Any:
    """Read the content of a manifest without arrays.

    Raises FileNotFoundError: there is none.
    Raises ValueError: it is damaged, or has another version.
    """
    shown, fs, root = file_system(path)
    return _manifest(_read(fs, shown, root, MANIFEST, "nothing was saved there"), shown)["content"]


def write_part(path: PathLike, name: str, arrays: Mapping[str, np.ndarray]) -> StoredFile:
    """Write a file of arrays into a directory before its manifest.

    path: a directory, which is created.
    name: ``"part-....safetensors"``.
    arrays: mapping of str to array.
    """
    _, fs, root = file_system(path)
    fs.makedirs(root, exist_ok=True)
    digest, count = write_file(fs, root, name, _chunks(arrays))
    return StoredFile(name, digest, count)


def read_part(path: PathLike, part: StoredFile) -> dict[str, np.ndarray]:
    """Read a part that a manifest names.

    Raises FileNotFoundError: it is missing.
    Raises ValueError: it is damaged.
    """
    shown, fs, root = file_system(path)
    data = _read(fs, shown, root, part.name, "copy the directory whole", part.bytes)
    if len(data) != part.bytes or sha256(data).hexdigest() != part.sha256:
        raise _damaged(shown, f"{part.name} is not what was saved")
    return arrays_of(data, shown)


def _chunks(arrays: Mapping[str, np.ndarray]) -> Iterable[bytes | memoryview]:
    """Yield arrays as a file of safetensors without a copy, the widest first for alignment."""
    given = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    names = sorted(given, key=lambda name: (-given[name].itemsize, name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        start, end = end, end + given[name].nbytes
        dtype = _NAMES[given[name].dtype.str[1:]]
        header[name] = {
            "dtype": dtype,
            "shape": [*arrays[name].shape],
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        if given[name].nbytes:
            yield given[name].reshape(-1).view("u1").data


def file_system(path: PathLike) -> tuple[str, Any, str]:
    """Return the path for messages, its file system, and the path there."""
    from fsspec.core import url_to_fs

    shown = os.fspath(path)
    if not isinstance(shown, str):
        raise TypeError(f"path must be a str or a path of one. Got {path!r} instead.")
    try:
        fs, root = url_to_fs(shown)
    except FileNotFoundError as error:  # only opening an archive reads here
        raise FileNotFoundError(
            f"{shown} is in an archive that does not exist, and dps makes none: save into a "
            "directory, and pack that"
        ) from error
    fs.invalidate_cache()  # other processes write there, too
    return shown, fs, root.rstrip("/") or root


@contextlib.contextmanager
def os_errors(shown: str) -> Iterator[None]:
    """Convert exceptions that a file system defines itself to `OSError` with the path."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{shown} cannot be read: {type(error).__name__}: {error}") from error


def names_in(fs: Any, root: str) -> list[str]:
    """Return the names of the entries of a directory."""
    return [str(name).rstrip("/").rpartition("/")[2] for name in fs.ls(root, detail=False)]


def _named_arrays(fs: Any, root: str) -> str | None:
    """Return the file of arrays that the manifest there names, or None."""
    try:
        digest = json.loads(fs.cat_file(f"{root}/{MANIFEST}"))["arrays"]["sha256"]
        return _arrays_file(digest) if isinstance(digest, str) else None
    except (ValueError, TypeError, KeyError, RecursionError, OSError):
        return None


def _arrays_file(digest: str) -> str:
    return f"arrays-{digest[:16]}.safetensors"


def _digest(manifest: Any) -> str:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode()).hexdigest()


def _damaged(shown: str, what: str) -> ValueError:
    return ValueError(f"{shown} is damaged, {what}: save it again, or restore a copy")


def _manifest(raw: bytes, shown: str) -> dict[str, Any]:
    try:
        manifest = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _damaged(shown, f"its {MANIFEST} is no JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ValueError(f"{shown} was not saved by dps: its {MANIFEST} does not say so")
    version = manifest.get("version")
    if version != _VERSION:
        raise ValueError(
            f"{shown} is of version {version!r} of the format, and this dps reads {_VERSION}: "
            "load it with the dps that saved it"
        )
    given = manifest.pop("sha256", None)
    try:
        expected = _digest(manifest)
    except (ValueError, RecursionError) as error:
        raise _damaged(shown, f"its {MANIFEST} is not what was saved ({error})") from error
    if given != expected:
        raise _damaged(shown, f"its {MANIFEST} is not what was saved")
    unknown = set(manifest) ^ {"format", "version", "arrays", "content"}
    arrays = manifest.get("arrays")
    if unknown or not isinstance(arrays, dict) or set(arrays) != {"sha256", "bytes"}:
        raise _damaged(shown, f"its {MANIFEST} has other keys than it should have")
    if type(arrays["bytes"]) is not int or arrays["bytes"] < 0:
        raise _damaged(shown, f"its {MANIFEST} has no number of bytes of the arrays")
    if not isinstance(arrays["sha256"], str) or not _DIGEST.fullmatch(arrays["sha256"]):
        raise _damaged(shown, f"its {MANIFEST} has no digest of the arrays")
    return manifest


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def arrays_of(data: bytes, shown: str) -> dict[str, np.ndarray]:
    """Return the arrays of safetensors in memory of their own.

    Raises ValueError: the data is not valid.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        found = load(data)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise _damaged(shown, f"its arrays are no safetensors ({error})") from error
    # Copies with aligned, writable memory of their own.
    return {name: np.require(array, requirements=["A", "W"]) for name, array in found.items()}


def _read(fs: Any, shown: str, root: str, name: str, remedy: str, nbytes: int = -1) -> bytes:
    """Read a file of `nbytes` bytes after checking its size."""
    try:
        with os_errors(shown):
            found = fs.size(f"{root}/{name}")
        if found is not None and (found > _LONGEST_MANIFEST if nbytes < 0 else found != nbytes):
            raise _damaged(shown, f"{name} has {found} bytes")
        with os_errors(shown):
            return bytes(fs.cat_file(f"{root}/{name}"))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{shown} has no {name}; {remedy}") from None


def write_file(
    fs: Any,
    root: str,
    name: str | Callable[[str], str],
    chunks: Iterable[bytes | memoryview],
) -> tuple[str, int]:
    """Write a file under a temporary name, and rename it once it is complete.

    fs, root: see `file_system`.
    name: name of the file, or a function of its digest.
    Returns its digest and its size in bytes.
    """
    from fsspec.implementations.local import LocalFileSystem

    before = name if isinstance(name, str) else name("0" * 64)
    beside = f"{root}/.{before}.{uuid.uuid4().hex}"
    local = isinstance(fs, LocalFileSystem)
    digest, count = sha256(), 0
    try:
        with open(beside, "wb") if local else fs.open(beside, "wb") as file:
            for chunk in chunks:
                digest.update(chunk)
                file.write(chunk)
                count += len(chunk)
            if local:
                file.flush()
                os.fsync(file.fileno())
        place = f"{root}/{name if isinstance(name, str) else name(digest.hexdigest())}"
        if local:
            _replace(beside, place)
            _sync(root)
        else:
            fs.mv(beside, place)
    except BaseException:
        with contextlib.suppress(OSError):
            fs.rm_file(beside)
        raise
    return digest.hexdigest(), count


def _sync(root: str) -> None:
    """Flush a local directory, so that the names of its files are durable."""
    folder = os.open(root, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
