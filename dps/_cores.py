"""The number of cores that this process may use, and how replicas share them with BLAS."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

_lock = threading.Lock()
_inside = 0
_limiter: Any = None
_found: tuple[int, Any] = (0, None)


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    It is the minimum of the machine's cores, the process's affinity, the CPU quotas of its cgroup
    and the parent cgroups, rounded up, and ``LOKY_MAX_CPU_COUNT``.
    """
    cores = [os.cpu_count() or 1, *_own_cgroup_cores()]
    if hasattr(os, "sched_getaffinity"):
        cores.append(len(os.sched_getaffinity(0)))
    with suppress(ValueError):
        cores.append(int(os.environ.get("LOKY_MAX_CPU_COUNT", "")))
    return max(1, min(cores))


def in_a_pool() -> bool:
    """True if another library has given this thread a share of the cores.

    This holds in a child process of `multiprocessing`, and in a thread of joblib.
    """
    joblib = sys.modules.get("joblib.parallel")
    nested = joblib is not None and bool(joblib.get_active_backend()[0].nesting_level)
    return nested or multiprocessing.parent_process() is not None


@cache
def _own_cgroup_cores() -> list[int]:
    return list(cgroup_cores())  # it takes a millisecond


def cgroup_cores(root: str = "/") -> Iterator[int]:
    """Yield the cores that each CPU quota on this process allows, for cgroups 1 and 2.

    root: the directory of ``proc`` and ``sys``.
    """
    try:
        groups = Path(root, "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for group in groups:
        _, controllers, name = group.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in ("", controllers or "unified", "cpu"):
            base = Path(root, "sys/fs/cgroup", mount)
            inner = base / name.lstrip("/")  # missing in a container that sees its own group only
            for folder in (inner, *inner.parents):
                if folder.is_relative_to(base):
                    yield from _quota_of(folder)


def _quota_of(folder: Path) -> Iterator[int]:
    for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with suppress(OSError, ValueError):  # no such file, or "max" for no quota
            quota, period = map(int, " ".join((folder / f).read_text() for f in files).split())
            if quota > 0 and period > 0:  # -1: no quota
                yield math.ceil(quota / period)


def _libraries() -> Any:
    """Return the libraries of BLAS; search again after further imports."""
    global _found
    from threadpoolctl import ThreadpoolController

    if _found[0] != (now := len(sys.modules)):
        _found = now, ThreadpoolController()
    return _found[1]


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Make BLAS compute in the calling thread while the body runs.

    Several callers with several threads each wait for each other's threads by spinning, and threads
    of BLAS keep spinning for 0.1 s after a call. The number of threads belongs to the process, so
    the first caller sets it and the last one restores it.
    """
    global _inside, _limiter
    with _lock:
        if _inside == 0:
            _limiter = _libraries().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limiter.restore_original_limits()
                _limiter = None
