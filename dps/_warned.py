"""Warnings of one thread, which other threads of the process neither lose nor get.

Filters belong to the whole process: a block of one thread that changes them and puts them back may
leave them changed for good if another thread's overlaps. Here a filter matches the warnings of
threads that keep their own, and of no others. So it does no harm where such a block brings it back.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_lock = threading.Lock()
_inside = 0
_before: Any = warnings.showwarning
_of_thread = threading.local()


class _Kept(type):
    """The class of `_OfThisThread`."""

    def __subclasscheck__(cls, other: type) -> bool:
        return hasattr(_of_thread, "found")


class _OfThisThread(Warning, metaclass=_Kept):
    """Category of every warning, in a thread that keeps its own."""


_FILTER = ("always", None, _OfThisThread, None, 0)


@contextmanager
def warned() -> Iterator[list[Warning]]:
    """Yield a list that gets the warnings of this thread, whatever the process's filters say.

    `warnings.showwarning` is the process's, so the first thread replaces it and the last one puts
    it back. Other threads' warnings go to the one before.
    """
    global _inside, _before
    outer = getattr(_of_thread, "found", None)
    with _lock:
        # It comes first from now on. Either way, a warning that has been shown is shown again.
        first = warnings.filters[:1] == [_FILTER]
        warnings.simplefilter("always", _OfThisThread, append=first)
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
            if _inside == 0:
                with suppress(ValueError):
                    list.remove(warnings.filters, _FILTER)  # type: ignore[arg-type]
                if warnings.showwarning is _show:
                    warnings.showwarning = _before


def _show(message: Any, *args: Any, **options: Any) -> None:
    if hasattr(_of_thread, "found"):
        _of_thread.found.append(message)
    else:
        _before(message, *args, **options)
