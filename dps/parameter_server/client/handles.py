"""What a call that does not wait returns."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Generator
from typing import Any


class Handle:
    """The result of a call with ``wait=False``, to come; in a coroutine it is awaited.

    Calls of one server object that do not wait are done one after another, in order.
    """

    def __init__(self, future: concurrent.futures.Future[Any]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> Any:
        """What the call returns, or raises.

        timeout: seconds after which to raise TimeoutError; the call goes on.
        """
        return self._future.result(timeout)

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self._future).__await__()
