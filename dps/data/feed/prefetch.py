"""Items made ahead in a thread beside the one that uses them, a bounded number of them.

Knows nothing of what items are.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
_LOOK_EVERY = 0.5  # seconds
_JOIN_SECONDS = 2.0


def ahead(items: Iterator[T], waiting: Callable[[], None], at_once: int = 2) -> Generator[T]:
    """Yield items, and prepare the next ones: `at_once` in all, with the one in use.

    Protocol. A permit stands for an item that is there or being made. The thread takes one
    before it makes an item; the user gives one back when it asks for the next. A caller that stops
    first says so: the user by `ended`, which the thread sees before its next item, and the
    thread by its last message. The user waits for the thread to end, which takes as long as
    the item at work, but not for longer than a moment: the thread is a daemon.

    items: used in the thread alone.
    waiting: called now and then while the next item is waited for; raises to give up.
    Raises BaseException: what making an item raised.
    """
    made: queue.SimpleQueue[tuple[str, T | BaseException | None]] = queue.SimpleQueue()
    permits = threading.Semaphore(at_once)
    ended = threading.Event()

    def make() -> None:
        try:
            while True:
                permits.acquire()
                if ended.is_set():
                    return
                try:
                    item = next(items)
                except StopIteration:
                    break
                made.put(("item", item))
                del item
            made.put(("end", None))
        except BaseException as error:  # for the one who waits for the item
            made.put(("error", error))

    # In the user's context: what makes items may ask on which of Dask's workers it is.
    thread = threading.Thread(
        target=copy_context().run, args=(make,), name="dps-prefetch", daemon=True
    )
    thread.start()
    try:
        while True:
            try:
                kind, value = made.get(timeout=_LOOK_EVERY)
            except queue.Empty:
                waiting()
                continue
            if kind == "error":
                assert isinstance(value, BaseException)
                raise value
            if kind == "end":
                return
            yield value  # type: ignore[misc]
            del value
            permits.release()
    finally:
        ended.set()
        permits.release()
        thread.join(_JOIN_SECONDS)
