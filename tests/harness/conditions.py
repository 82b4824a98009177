"""Waiting on a condition, never for a time; and Ctrl-C at a condition."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Wait until `condition()` is true and return its value; an error names `what` did not come."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        threading.Event().wait(0.005)
    return value


def press() -> None:
    """Ctrl-C, which this thread hears of before it goes on."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    signal.getsignal(signal.SIGINT)
