"""Which host this is, so that a file found on a network drive is not taken for shared memory."""

from __future__ import annotations

import platform
import uuid
from functools import cache
from pathlib import Path

__all__ = ["host_id"]


@cache
def host_id() -> str:
    """A string that two processes share only if the same kernel runs them.

    Linux's boot id; elsewhere, the host's name and hardware address.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{platform.node()}-{uuid.getnode():x}"
