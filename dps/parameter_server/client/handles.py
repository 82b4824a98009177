"""The pending result of a call that does not wait."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Generator
from typing import Any


class Handle:
    """The pending result of a call with ``wait=False``; in a coroutine it can be awaited.

    Calls of one server object that do not wait run one after another, in order.
    """

    def __init__(self, future: concurrent.futures.Future[Any]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """True if the call has ended, with a result or an error."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the call; return its result, or raise its error.

        timeout: seconds after which to raise TimeoutError; the call goes on.
        """
        return self._future.result(timeout)

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self._future).__await__()
