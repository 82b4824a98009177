"""Warnings of one thread, which other threads neither lose nor receive.

Filters and `warnings.showwarning` belong to the process. If two threads change and restore them in
overlapping blocks, a change may stay forever.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_inside = 0
_before: Any = warnings.showwarning
_of_thread = threading.local()


def warn(
    message: str | Warning, category: type[Warning] = UserWarning, stacklevel: int = 1
) -> None:
    """Warn like `warnings.warn`, or add to this thread's list, whatever filters say."""
    if hasattr(_of_thread, "found"):
        _of_thread.found.append(message if isinstance(message, Warning) else category(message))
    else:
        warnings.warn(message, category, stacklevel + 1)


@contextmanager
def warned() -> Iterator[list[Warning]]:
    """Yield a list that collects this thread's warnings instead of showing them.

    Warnings of other packages arrive through `warnings.showwarning`, unless a filter ignores them
    or turns them into errors. The first thread replaces that function, and the last one restores
    it. Warnings of other threads are passed to the original function.
    """
    global _inside, _before
    outer = getattr(_of_thread, "found", None)
    with _lock:
        with warnings.catch_warnings():  # repeated warnings are shown again
            pass
        if warnings.showwarning is not _show:
            _before, warnings.showwarning = warnings.showwarning, _show
        _inside += 1
    _of_thread.found = found = list[Warning]()
    try:
        yield found
    finally:
        if outer is None:
            del _of_thread.found
        else:
            _of_thread.found = outer
        with _lock:
            _inside -= 1
            if _inside == 0 and warnings.showwarning is _show:
                warnings.showwarning = _before


def _show(message: Any, *args: Any, **options: Any) -> None:
    if hasattr(_of_thread, "found"):
        _of_thread.found.append(message)
    else:
        _before(message, *args, **options)
