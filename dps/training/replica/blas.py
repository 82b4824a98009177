"""One thread of BLAS for each replica: replicas share the cores out among themselves.

Several callers with several threads each wait for each other's, spinning. The number is the
process's, so the first replica there sets it and the last one to go gives it back.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_inside = 0
_limiter: Any = None
_found: tuple[int, Any] = (0, None)


def _libraries() -> Any:
    """The libraries of BLAS; they are looked for again once another module has been imported."""
    global _found
    from threadpoolctl import ThreadpoolController

    if _found[0] != (now := len(sys.modules)):
        _found = now, ThreadpoolController()
    return _found[1]


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Have BLAS compute in the thread that calls it, while the body runs."""
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
