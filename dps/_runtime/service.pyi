from collections.abc import Callable

from dps._runtime.ends import MappedEnd
from dps._runtime.wire import Wire

class Service:
    """Serves a rank that is far through its end in the window.

    ``answer(bytes)`` calls the function that a message of the rank means, and does not raise.
    """

    def __init__(self, end: MappedEnd, wire: Wire, answer: Callable[[bytes], bytes]) -> None: ...
    def run(self, pickled: Callable[[Exception], bytes]) -> None:
        """Serve until the rank closes the wire; `pickled` are the bytes of an exception."""
