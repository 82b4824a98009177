"""Connections of Dask whose sockets are taken over by a blocking thread.

Dask makes and secures a connection to the address that the shard's worker listens on. After a
handshake both sides take over its socket. Only this module uses private names of tornado. If these
are missing, or a connection has no socket (`inproc`, `ucx`), Actor calls replace it (``call.py``).

Bytes that arrived while the event loop was still reading are in the stream's buffer, and are passed
on. Between the end of the handshake and the takeover both sides send only whole messages of the new
protocol, so none is torn.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from distributed.comm.tcp import TCP
from distributed.core import Status
from tornado.iostream import IOStream, SSLIOStream

from dps._runtime.wire.wire import ObjectWire, SocketWire, Wire

#: Seconds after which a thread that waits on a wire makes its checks.
TICK = 1.0
#: Seconds without any answer after which another host is lost, by default.
SILENCE = 2.0
#: Small pieces are joined up to this number of bytes.
_SMALL = 1 << 16


def can_be_taken_over(comm: Any) -> bool:
    """True if a connection has a socket that a thread can use."""
    return (
        isinstance(comm, TCP)
        and isinstance(comm.stream, IOStream)
        and all(hasattr(comm.stream, name) for name in ("_read_buffer", "_read_buffer_size"))
    )


def wire_of(
    comm: TCP,
    look: Callable[[], None],
    lost: Callable[[str], Exception],
    tick: float = TICK,
    silence: float = SILENCE,
) -> Wire:
    """Take over a connection, in the thread of its event loop, once its handshake is written.

    comm: Dask considers it closed afterwards.
    look: called about every `tick` seconds during a wait; raises to give up.
    lost: makes an exception from a reason.
    silence: seconds without any answer after which the other host is lost.
    """
    stream = comm.stream
    if stream is None or stream.writing():
        comm.abort()
        raise lost("the connection was lost during its handshake")
    ahead = bytes(stream._read_buffer[: stream._read_buffer_size])
    _keep_alive(stream.socket, silence)
    if isinstance(stream, SSLIOStream):
        secured: ssl.SSLSocket = stream.socket
        look = _looking(secured, look, lost, silence)
        stream.io_loop.remove_handler(secured.fileno())
        stream._state = None
        stream.socket = socket.socket()  # closed in its place
        comm.abort()
        return ObjectWire(_Secured(secured, ahead, tick), look, lost)
    # A duplicate, so that closing the stream does not shut down the connection.
    own = stream.socket.dup()
    comm.abort()
    return SocketWire(own, ahead, _looking(own, look, lost, silence), lost, tick)


def _keep_alive(over: socket.socket, silence: float) -> None:
    """Let the system ask every second whether the other host is up.

    A host answers for a process that is frozen or busy. Dask's limit on unacknowledged data is
    lifted: a process that reads late is not dead.
    """
    over.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    begins = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"  # macOS
    times = max(1, round(silence))
    for name, value in (
        (begins, 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", times), ("TCP_USER_TIMEOUT", 0),
    ):  # fmt: skip
        if hasattr(socket, name):
            over.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _looking(
    over: socket.socket,
    look: Callable[[], None],
    lost: Callable[[str], Exception],
    silence: float,
) -> Callable[[], None]:
    """Return a check that also notices a lost host while data is unacknowledged.

    The system then sends no probes, and retransmits for a quarter of an hour.
    """

    def looked() -> None:
        if _is_silent(over, silence):
            raise lost(f"its host has not answered for {silence:g} s")
        look()

    return looked


def _is_silent(over: socket.socket, silence: float) -> bool:
    """True if nothing has come from the other host for long, in spite of repeated probes."""
    if sys.platform != "linux":  # deadlines apply there
        return False
    info = over.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
    # Fields of the kernel's tcp_info: retransmits, probes, and milliseconds since the last answer.
    again, probes = info[2], info[3]
    (since,) = struct.unpack_from("=I", info, 56)
    return again + probes >= 2 and since > 1000 * silence


class _Secured:
    """A TLS socket for an `ObjectWire`.

    ahead: bytes that have been received already.
    """

    def __init__(self, over: ssl.SSLSocket, ahead: bytes, tick: float) -> None:
        over.setblocking(True)
        over.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        over.settimeout(tick)
        self._over, self._closing = over, threading.Lock()
        self._ahead = memoryview(ahead)

    def send(self, pieces: list[memoryview], look: Callable[[], None]) -> None:
        if len(pieces) > 1 and sum(piece.nbytes for piece in pieces) <= _SMALL:
            pieces = [memoryview(b"".join(pieces))]
        for piece in pieces:
            while piece:
                try:
                    piece = piece[self._over.send(piece) :]
                except TimeoutError:
                    look()

    def receive(self, into: memoryview) -> int:
        if self._ahead:
            n = min(len(self._ahead), len(into))
            into[:n] = self._ahead[:n]
            self._ahead = self._ahead[n:]
            return n
        try:
            return self._over.recv_into(into)
        except ssl.SSLEOFError:  # the other side has closed without a shutdown
            return 0

    def shut(self) -> None:
        # SSLSocket.shutdown would drop the TLS session while another thread uses it.
        with self._closing, contextlib.suppress(OSError):  # the other side was faster
            socket.socket.shutdown(self._over, socket.SHUT_RDWR)

    def close(self) -> None:
        with self._closing:
            self._over.close()


async def accept(comm: TCP, silence: float) -> Wire | None:
    """Accept a connection and take it over; None if its other end is lost."""
    try:
        await comm.write((True, None))
        return wire_of(comm, wait_for_ever, ConnectionError, silence=silence)
    except OSError:
        comm.abort()
        return None


def wait_for_ever() -> None:
    """Do nothing: a service waits for its peer as long as that lives."""


def handler_of(method: Callable[..., Awaitable[Status]]) -> Callable[..., Awaitable[Status]]:
    """Make a handler for Dask that calls a method as long as its object lives.

    Dask keeps the last 128 handlers forever to remember whether they take a comm; a bound method
    among them would keep a window or a server alive.
    """
    known = weakref.WeakMethod(method)

    async def take(comm: Any, **given: Any) -> Status:
        found = known()
        if found is None:
            comm.abort()
            return Status.dont_reply
        return await found(comm, **given)

    return take
