"""A loss that raises, in a module that workers can import, and exceptions that hardly travel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dps.losses import LogLoss


class TwoArguments(Exception):
    """Cannot be unpickled: Exception gives one argument of what was two."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} at {where}")


class Holding(Exception):
    """Cannot be pickled."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.lock = threading.Lock()


class Speechless(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@dataclass(frozen=True)
class Raising(LogLoss):
    """A loss that raises."""

    make: Callable[[], Exception]

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        raise self.make()
