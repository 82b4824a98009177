"""A rank's connection to a shard that it cannot map: arrays go straight to their places.

It owns the connection and who writes what on it. What an operation does, and who waits
for whom, it must not know.

The connection is one of Dask's own: `connect` to the address that the shard's worker
listens on anyway, with Dask's handshake, TLS and pickles, kept by a handler of that worker
whose name the Actor hands out to the ranks it admits. An Actor call allocates each array
anew, and copies it, at both ends; that is most of its time. Here the bytes of arrays follow
the message that speaks of them, and are read into memory that is there already: of a
gradient the rank's slot in the window, of an answer memory that the rank uses again.

Protocol, one connection a rank and shard
    rank    ``{op, rank, fence}``; `fence` must own the rank, once
    shard   answer: None
    rank    message: ``(operation, args)``
    shard   answer: ``(True, (result, nanoseconds waited))`` or ``(False, exception)``
    ...     a message and its answer, in turn, until either side closes

A message or an answer is a pickle with the sizes of its arrays, as one message of Dask's
(`send`), then the arrays' bytes. The first array of a message that is as large as a slot is
read into the rank's slot. That is safe at any time: the slot is read by others only while
an exchange of this rank is under way, and no message comes before its answer. For the same
reason an answer is sent from the window without a copy.

What a crash leaves. Of the rank, before its message is complete: half a gradient in the
slot, which has not ARRIVED. Later: the operation goes on as if the rank lived, and its
answer finds nobody. Of the shard: a closed connection, on which the rank's next or present
call is an error at once. A connection that has been left in the middle of anything is
aborted, never used again: where its bytes belong is no longer known.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed.comm import Comm, CommClosedError, connect
from distributed.comm.tcp import TCP
from distributed.core import Status
from distributed.protocol import pickle

from dps.errors import DPSError, FencedError, ServerLostError
from dps.server.operations import check_fence
from dps.server.remote import PendingCall, Remote
from dps.server.window import Operation

if TYPE_CHECKING:
    from dps.server.shard import ParameterShard

__all__ = ["Connection", "Gateway"]

#: Dask reads no more at a time into one buffer either: TLS sockets fail on 2 GiB.
_PIECE = 1 << 26
#: Bytes from which an answer's memory is used again: the allocator takes fresh pages.
_LARGE = 1 << 16

#: Where an array's bytes go: its place in the message and its bytes to writable memory.
Place = Callable[[int, int], memoryview]


class Gateway:
    """What ranks connect to: a handler of the worker that has the shard.

    It goes when the shard does, also one that nobody closes because its client has died.

    Parameters
    ----------
    worker : distributed.Worker
    shard : ParameterShard

    Attributes
    ----------
    name : str
        Of the handler.
    """

    def __init__(self, worker: Any, shard: ParameterShard) -> None:
        self.name = f"dps-gateway-{shard.window.token.hex()}"
        self._worker = worker
        self._shard = weakref.ref(shard)
        self._comms: dict[int, Comm] = {}
        worker.handlers[self.name] = self._serve
        self.close = weakref.finalize(shard, worker.loop.add_callback, self._close)
        self.close.atexit = False

    def _close(self) -> None:
        self._worker.handlers.pop(self.name, None)
        for comm in self._comms.values():
            comm.abort()

    async def _serve(self, comm: Comm, rank: int, fence: int) -> Status:
        try:
            if await self._admitted(comm, rank, fence):
                self._comms[rank] = comm
                try:
                    while await self._answered(comm, rank):
                        continue
                finally:
                    del self._comms[rank]
        except OSError:  # the rank has gone, as it does at the end of a fit
            pass
        finally:
            comm.abort()
        return Status.dont_reply

    async def _admitted(self, comm: Comm, rank: int, fence: int) -> bool:
        shard = self._shard()
        if shard is None:
            return False
        try:
            check_fence(shard.window, rank, fence)
            if rank in self._comms:
                raise FencedError("a second connection is refused", rank=rank)
        except DPSError as error:
            await send(comm, (False, error))
            return False
        await send(comm, (True, None))
        return True

    async def _answered(self, comm: Comm, rank: int) -> bool:
        message = await comm.read()
        shard = self._shard()  # not while nothing is asked: it would never go
        if shard is None:
            return False
        slot = shard.window.slot(rank).view(np.uint8).data

        def place(number: int, nbytes: int) -> memoryview:
            return slot if number == 0 and nbytes == slot.nbytes else _memory(nbytes)

        operation, args = await receive(comm, message, place)
        answer: tuple[bool, Any]
        try:
            answer = True, await shard.drive(operation(shard.window, rank, *args), rank)
        except Exception as error:
            answer = False, error
        await send(comm, answer)
        return True


class Connection:
    """A rank's end of a connection. One call at a time.

    Parameters
    ----------
    remote : Remote
        The Actor.
    comm : distributed.comm.Comm
    """

    def __init__(self, remote: Remote, comm: Comm) -> None:
        self._remote = remote
        self._loop = remote.node.loop  # that of the comm, whichever thread calls
        self._comm = comm
        self._memory: dict[int, memoryview] = {}

    @classmethod
    def open(
        cls, remote: Remote, name: str, rank: int, fence: int, timeout: float
    ) -> Connection | None:
        """Connect to the gateway of that name; None where the kind of comm does not serve.

        Raises
        ------
        FencedError
            The rank is not this attempt's, or connected already.
        ServerLostError
            The worker is gone, or does not answer within `timeout` seconds.
        """
        comm = remote.submit(_connect(remote, name, rank, fence, timeout)).result(timeout)
        return None if comm is None else cls(remote, comm)

    def start(self, operation: Callable[..., Operation], *args: Any) -> PendingCall:
        """Begin an operation. Large arrays in its result are valid until the next call."""
        coroutine = self._converse((operation, args))
        answer = asyncio.run_coroutine_threadsafe(coroutine, self._loop.asyncio_loop)
        return PendingCall(self._remote, answer)

    async def _converse(self, message: Any) -> Any:
        try:
            await send(self._comm, message)
            done, value = await receive(self._comm, await self._comm.read(), self._place)
        except BaseException:
            self._comm.abort()
            raise
        if done:
            return value
        raise value

    def _place(self, number: int, nbytes: int) -> memoryview:
        if nbytes < _LARGE:
            return _memory(nbytes)
        if number not in self._memory or self._memory[number].nbytes != nbytes:
            self._memory[number] = _memory(nbytes)
        return self._memory[number]

    def close(self) -> None:
        """Close the connection; what is under way is an error."""
        self._loop.add_callback(self._comm.abort)


async def _connect(remote: Remote, name: str, rank: int, fence: int, timeout: float) -> Comm | None:
    comm = await connect(remote.address, timeout=timeout, **remote.node.connection_args)
    try:
        if not isinstance(comm, TCP):  # no stream to read from
            comm.abort()
            return None
        await comm.write({"op": name, "rank": rank, "fence": fence})
        answer = await comm.read()
        if answer is None:  # Dask's, where there is no handler of that name
            raise ServerLostError("the shard has been released", worker=remote.address)
        done, value = await receive(comm, answer, lambda number, nbytes: _memory(nbytes))
        if not done:
            raise value
    except BaseException:
        comm.abort()
        raise
    return comm


async def send(comm: TCP, value: Any) -> None:
    """Write a value: what Dask would, but for the bytes of its contiguous arrays, and those."""
    arrays: list[memoryview] = []
    pickled = pickle.dumps(value, buffer_callback=lambda buffer: arrays.append(buffer.raw()))
    await comm.write((pickled, [array.nbytes for array in arrays]))
    for array in arrays:
        await _stream(comm).write(array)


async def receive(comm: TCP, message: Any, place: Place) -> Any:
    """The value that a message speaks of, its arrays in the memory that `place` gives."""
    pickled, sizes = message
    arrays = [place(number, nbytes) for number, nbytes in enumerate(sizes)]
    for array in arrays:
        for start in range(0, array.nbytes, _PIECE):
            await _stream(comm).read_into(array[start : start + _PIECE])
    return pickle.loads(pickled, buffers=arrays)


def _stream(comm: TCP) -> Any:
    if comm.stream is None:
        raise CommClosedError("the connection was closed")
    return comm.stream


def _memory(nbytes: int) -> memoryview:
    return np.empty(nbytes, np.uint8).data
