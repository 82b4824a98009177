from collections.abc import Callable, Sequence

from dps._runtime.ends import MappedEnd
from dps._runtime.tensors import TensorPart
from dps._runtime.wire import Wire

class Service:
    """Serves whoever is far: a rank through its end in the window, a caller by parts of tensors.

    ``respond(bytes)`` calls the function that a message means, and does not raise.
    """

    def __init__(
        self,
        wire: Wire,
        respond: Callable[[bytes], bytes],
        end: MappedEnd | None = None,
        parts: Sequence[TensorPart] = (),
    ) -> None: ...
    def run(self, pickled: Callable[[Exception], bytes]) -> None:
        """Serve until the wire is closed; `pickled` are the bytes of an exception."""
