"""One thread of BLAS for each replica: replicas share the cores out among themselves.

Several callers with several threads each wait for each other's, spinning. The number is the
process's, so the first replica there sets it and the last one to go gives it back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_inside = 0
_limiter: Any = None


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Have BLAS compute in the thread that calls it, while the body runs."""
    global _inside, _limiter
    from threadpoolctl import ThreadpoolController

    with _lock:
        if _inside == 0:
            _limiter = ThreadpoolController().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limiter.restore_original_limits()
                _limiter = None
