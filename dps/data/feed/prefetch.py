"""Items that a thread makes ahead of the thread that uses them, up to a number."""

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
    """Yield items while a thread prepares the next ones, `at_once` in all with the current one.

    Protocol. A permit stands for an item that exists or is being made. The thread takes a permit
    before it makes an item; the user returns one when it asks for the next item. Either side may
    stop first: the user sets `ended`, which the thread checks before its next item, and the thread
    sends a last message. The user then waits for the thread, which finishes the current item, but
    only for a moment: the thread is a daemon.

    items: used in the thread only.
    waiting: called now and then while waiting for the next item; raises to give up.
    Raises BaseException: whatever making an item raised.
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
        except BaseException as error:  # raised in the user's thread
            made.put(("error", error))

    # In the user's context: making an item may depend on the Dask worker of the thread.
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
