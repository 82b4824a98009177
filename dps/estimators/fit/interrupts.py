"""Ctrl-C while a fit ends: the trained parameters are stored first."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import FrameType


class Interrupts:
    """Delays one Ctrl-C, from `hold` to the end of the block.

    A second one interrupts at once, without waiting for a cluster that does not answer. Outside the
    main thread, which alone receives signals, or if the program has its own handler, nothing is
    delayed.

    held: whether there has been one.

    Examples
    --------
    >>> interrupts = Interrupts()
    >>> with interrupts:
    ...     pass
    >>> interrupts.held
    False
    """

    def __init__(self) -> None:
        self.held = False
        self._holding = False

    def hold(self) -> None:
        """Begin to delay it; the block may begin later."""
        if self._holding or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._holding = True
            signal.signal(signal.SIGINT, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.held:
            signal.default_int_handler(number, frame)
        self.held = True

    def __enter__(self) -> Self:
        self.hold()
        return self

    def __exit__(self, *_: object) -> None:
        if self._holding:
            self._holding = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
