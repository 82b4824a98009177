"""Sending a fit's events to the scheduler, in order and without waiting."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Mapping
from typing import Any

from distributed import Client

from dps.monitor.events import TOPIC


class EventSender:
    """Sends events through a client.

    An event that cannot be sent is dropped; the fit continues.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._last: concurrent.futures.Future[None] | None = None

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send an event after the earlier ones."""
        sending = self._send(self._last, event)
        try:
            self._last = asyncio.run_coroutine_threadsafe(sending, self._client.loop.asyncio_loop)
        except RuntimeError:  # the client and its event loop are closed
            sending.close()

    async def _send(
        self, before: concurrent.futures.Future[None] | None, event: Mapping[str, Any]
    ) -> None:
        if before is not None:
            await asyncio.wait([asyncio.wrap_future(before)])
        with contextlib.suppress(OSError):  # the scheduler is lost
            await self._client.scheduler.log_event(topic=TOPIC, msg=dict(event))

    def finish(self, seconds: float) -> None:
        """Wait until all events have arrived, but not longer than `seconds`."""
        if self._last is not None:
            concurrent.futures.wait([self._last], seconds)
            self._last.cancel()
