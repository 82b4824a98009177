"""Calls to an Actor with a deadline, from a client or from a task.

Only this module calls Actors. It uses the RPC behind ``Actor`` directly: an ``Actor`` handle makes
a second client in each worker that unpickles it, and its futures never finish if an argument cannot
be pickled or the Actor has been released.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from dps.errors import ClusterError, DPSError, ServerLostError
from dps.server.group.session import Endpoint

_CHECK_EVERY = 0.5


@dataclass(frozen=True)
class Remote(Endpoint):
    """An Actor on a worker."""

    address: str  # address of its worker
    key: str  # key of the Actor's task
    # The client for calls, in the client's process. It is not pickled: in a task, calls go out from
    # the task's worker, which other threads of the task must be given.
    client: Any = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, (self.address, self.key)

    def start(self, method: str, *args: Any, direct: bool = False) -> PendingCall:
        """Start a call; several calls may be pending.

        A client calls through the scheduler unless `direct`: it may be unable to reach a worker.
        """
        from distributed.protocol import to_serialize

        message = {
            "actor": self.key,
            "function": "in_turn",  # see `Served`
            "args": [method, *(to_serialize(arg) for arg in args)],
            "kwargs": {},
        }
        return self.submit(_execute(self.node, self.address, message, direct))

    @property
    def node(self) -> Any:
        """The client or worker that calls go out from."""
        return self.client or _worker()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> PendingCall:
        """Run a coroutine that talks to the Actor's worker in the node's event loop."""
        loop = self.node.loop.asyncio_loop
        try:
            return PendingCall(self, loop, asyncio.run_coroutine_threadsafe(coroutine, loop))
        except RuntimeError as error:  # the client and its event loop are closed
            coroutine.close()
            raise self.lost(f"cannot be reached ({error})") from error

    def lost(self, what: str) -> DPSError:
        """Return the error of a lost Actor, with the reason.

        A client without a scheduler reaches no Actor, and therefore blames none.
        """
        status = getattr(self.node, "status", None)
        if isinstance(status, str) and status != "running":  # a worker's status is not a text
            return ClusterError(
                f"shard {self.key} {what}: the client is {status}, so its scheduler is gone, or "
                "it has been closed"
            )
        return ServerLostError(f"shard {self.key} {what}", worker=self.address)


@dataclass(frozen=True)
class _Raised:
    """An exception of an Actor's method."""

    error: Exception


class PendingCall:
    """The pending answer of an Actor."""

    def __init__(
        self,
        remote: Remote,
        loop: asyncio.AbstractEventLoop,
        future: concurrent.futures.Future[Any],
    ) -> None:
        self._remote = remote
        self._loop = loop
        self._future = future

    def result(self, timeout: float, check: Callable[[], None] | None = None) -> Any:
        """Return the answer within `timeout` seconds.

        check: called while waiting; raises to give up. Dask keeps trying to connect to a dead
            worker, so waiting alone shows nothing.
        Raises ServerLostError: the worker is lost, or does not answer within `timeout` seconds.
        Raises ClusterError: the scheduler is lost, or the event loop that receives the answer would
            wait for itself.
        """
        if asyncio._get_running_loop() is self._loop:
            self._future.cancel()
            raise ClusterError(
                "this would block the event loop that it waits for: call it with wait=False and "
                "await the result, or in another thread, by await asyncio.to_thread(...)"
            )
        deadline = time.monotonic() + timeout
        try:
            while check is not None and time.monotonic() < deadline:
                done, _ = concurrent.futures.wait([self._future], _CHECK_EVERY)
                if done:
                    break
                check()
            answer = self._future.result(max(0.0, deadline - time.monotonic()))
        except (concurrent.futures.TimeoutError, TimeoutError) as error:
            self._future.cancel()
            raise self._remote.lost(f"did not answer within {timeout:g} s") from error
        except (OSError, concurrent.futures.CancelledError) as error:
            raise self._remote.lost(f"cannot be reached ({error})") from error
        except (RuntimeError, AttributeError) as error:  # a client without connections
            lost = self._remote.lost(f"cannot be reached ({error})")
            raise (lost if isinstance(lost, ClusterError) else error) from error
        # An OSError of the method says nothing about the connection.
        if isinstance(answer, _Raised):
            raise answer.error
        return answer

    def within(self, seconds: float) -> Any:
        """Return the answer if it arrives within some seconds; it may be called again.

        Raises TimeoutError: it has not arrived yet.
        """
        concurrent.futures.wait([self._future], seconds)
        if not self._future.done():
            raise TimeoutError
        return self.result(0)

    @property
    def done(self) -> bool:
        """True if an answer has arrived."""
        return self._future.done()


def _worker() -> Any:
    """Return the worker that runs this task."""
    from distributed import get_worker

    return get_worker()


async def _execute(node: Any, address: str, message: dict[str, Any], direct: bool) -> Any:
    try:
        # A worker, or a client near the workers.
        if direct or getattr(node, "direct_to_workers", True):
            answer = await node.rpc(address).actor_execute(**message)
        else:
            answer = await node.scheduler.proxy(
                worker=address, msg={"op": "actor_execute", **message}
            )
    except Exception as error:
        # The scheduler unpickles nothing, so it passes a worker's errors on as text.
        if isinstance(error, KeyError) or str(error) == f"KeyError({message['actor']!r})":
            raise ServerLostError("the shard has been released", worker=address) from error
        raise
    if answer["status"] == "OK":
        return answer["result"]
    return _Raised(answer["exception"])
