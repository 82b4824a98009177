"""Warnings of one thread, which other threads of the process neither lose nor get.

Filters and `warnings.showwarning` belong to the whole process: a block of one thread that changes
them and puts them back may leave them changed for good where another thread's block overlaps.
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
    """Warn as `warnings.warn` does, or add to the list of this thread, whatever filters say."""
    if hasattr(_of_thread, "found"):
        _of_thread.found.append(message if isinstance(message, Warning) else category(message))
    else:
        warnings.warn(message, category, stacklevel + 1)


@contextmanager
def warned() -> Iterator[list[Warning]]:
    """Yield a list that gets the warnings of this thread, in place of its log.

    Warnings of other packages arrive through `warnings.showwarning`, unless a filter ignores them
    or turns them into errors. The first thread replaces that function, and the last one restores
    it. It hands the warnings of other threads to the replaced one.
    """
    global _inside, _before
    outer = getattr(_of_thread, "found", None)
    with _lock:
        with warnings.catch_warnings():  # those that have been shown before are shown again
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
