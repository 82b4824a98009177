"""The identity of this host, so that a file on a network drive does not pass for shared memory."""

from __future__ import annotations

import os
import platform
import uuid
from functools import cache
from pathlib import Path

from dps.server.memory.files import folder


@cache
def host_id() -> str:
    """A string that two processes share only if the same kernel runs them.

    Linux's boot id; elsewhere, the host's name and hardware address.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{platform.node()}-{uuid.getnode():x}"


def shared_memory_id() -> str:
    """A string that two processes have in common only if they can map each other's files.

    The host, the file system that such files lie in, and whose files they are.
    """
    return f"{host_id()} {os.stat(folder()).st_dev} {os.getuid()}"
