from collections.abc import Callable
from socket import socket
from typing import Any, Protocol

class Wire:
    def send_bytes(self, data: bytes) -> None: ...
    def receive_bytes(self, n: int) -> bytearray: ...
    def shut(self) -> None:
        """End what another thread sends or receives."""
    def close(self) -> None:
        """Give the connection back; not while another thread uses it."""

class SocketWire(Wire):
    """A connected TCP socket, used natively; it is owned from now on.

    `ahead` is what has been received already; `look` is called every `tick` seconds that somebody
    waits, and raises to give up; `lost` makes an exception of what has happened to the connection.
    """

    def __init__(
        self,
        socket: socket,
        ahead: bytes,
        look: Callable[[], None],
        lost: Callable[[str], Exception],
        tick: float,
    ) -> None: ...

class Conduit(Protocol):
    """What an `ObjectWire` is over."""

    def send(self, pieces: list[memoryview], look: Callable[[], None]) -> None:
        """Send all of them."""
    def receive(self, into: memoryview) -> int:
        """Put some bytes there; how many, 0 at the end. TimeoutError about once a second."""
    def shut(self) -> None: ...
    def close(self) -> None: ...

class ObjectWire(Wire):
    over: Any
    def __init__(
        self, over: Conduit, look: Callable[[], None], lost: Callable[[str], Exception]
    ) -> None: ...
