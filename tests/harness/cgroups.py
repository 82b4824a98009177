"""Control groups of this machine, as containers have them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def one_core() -> Iterator[Path | None]:
    """A group with a quota of one core, or None; its processes must have ended before it does."""
    for root, content in (
        ("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}),
        ("/sys/fs/cgroup", {"cpu.max": "100000 100000"}),
    ):
        group = Path(root, f"dps-test-{os.getpid()}")
        with suppress(OSError):
            group.mkdir()
            try:
                for name, value in content.items():
                    (group / name).write_text(value)
                yield group
            finally:
                group.rmdir()
            return
    yield None
