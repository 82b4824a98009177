"""A check before training that all shards can write to a path and see each other's files.

It finds a path that only this process can see before the fit needs a checkpoint there.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable
from functools import partial

from dps.files.directories import file_system, write_file
from dps.server.group.session import Check, Stores
from dps.server.store.snapshots import Snapshot

#: Seconds between two questions to the shards.
_TICK = 0.005


def probe(path: str, stores: Stores, timeout: float, check: Check | None) -> None:
    """Write a small file from here and from each shard, and read it from another process.

    timeout: seconds in which all of them must have written.
    check: called while waiting; raises to give up.
    Raises OSError: a worker cannot write to the path, or cannot read what others write.
    """
    token = secrets.token_hex(8)
    names = [f".probe-{token}", *(f".probe-{token}-{k}" for k in range(len(stores.shards)))]
    try:
        _, fs, root = file_system(path)
        fs.makedirs(root, exist_ok=True)
        write_file(fs, root, names[0], [token.encode()])
    except Exception as error:  # file systems raise exceptions of their own
        raise OSError(f"checkpoints cannot be written to {path}: {_described(error)}") from error
    try:
        for shard, name in enumerate(names[1:]):
            asked = [(None, partial(_answer, path, names[0], name, token))]
            stores.write(shard, asked, False, check)
        deadline = time.monotonic() + timeout
        for shard, name in enumerate(names[1:]):
            while (written := stores.written(shard, check)) is None:
                if time.monotonic() > deadline:
                    raise OSError(
                        f"checkpoints cannot be written to {path}: shard {shard} has tried for "
                        f"{timeout:g} s"
                    )
                time.sleep(_TICK)
            if written.error is not None:
                raise OSError(
                    f"checkpoints cannot be written to {path} by shard {shard}: {written.error}"
                ) from written.error
            if _read(path, name) != token.encode():
                raise OSError(
                    f"what shard {shard} writes to {path} is not seen here: give a path that all "
                    "workers share, on a network drive or in an object store"
                )
    finally:
        for name in names:
            with contextlib.suppress(Exception):
                fs.rm_file(f"{root}/{name}")


def _answer(path: str, question: str, name: str, token: str, pieces: Iterable[Snapshot]) -> None:
    """Return a shard's answer."""
    if _read(path, question) != token.encode():
        raise OSError(
            "what the client writes there is not seen on the shard's worker: give a path that all "
            "workers share, on a network drive or in an object store"
        )
    _, fs, root = file_system(path)
    write_file(fs, root, name, [token.encode()])


def _read(path: str, name: str) -> bytes | None:
    _, fs, root = file_system(path)
    try:
        return bytes(fs.cat_file(f"{root}/{name}"))
    except FileNotFoundError:
        return None


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
