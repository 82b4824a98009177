"""The identity of this host, to distinguish shared memory from files on a network drive."""

from __future__ import annotations

import os
import platform
import uuid
from functools import cache
from pathlib import Path

from dps.server.memory.files import folder


@cache
def host_id() -> str:
    """Return a text that two processes share only if the same kernel runs them.

    It is Linux's boot id; elsewhere the host's name and hardware address.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{platform.node()}-{uuid.getnode():x}"


def shared_memory_id() -> str:
    """Return a text that two processes share only if they can map each other's files.

    It names the host, the file system of such files, and their user.
    """
    return f"{host_id()} {os.stat(folder()).st_dev} {os.getuid()}"
