"""Modes: when a gradient is applied, and which replicas wait.

To add a mode, write its step in ``dps/_runtime`` and a file with a :class:`Mode` here, and name it
below.
"""

from __future__ import annotations

from typing import Literal

from dps.modes.allreduce import AllReduce
from dps.modes.asynchronous import Async
from dps.modes.auto import Auto
from dps.modes.base import Mode, StepSpec
from dps.modes.hybrid import Hybrid
from dps.modes.synchronous import Sync

__all__ = [
    "MODES",
    "AllReduce",
    "Async",
    "Hybrid",
    "Mode",
    "StepSpec",
    "Sync",
    "get_mode",
]

#: Modes by name; a name means the mode's defaults.
MODES: dict[str, type[Mode]] = {mode.name: mode for mode in (Sync, Async, AllReduce, Hybrid)}
#: The mode that a name stands for; modes never change.
_NAMED: dict[str, Mode] = {name: mode() for name, mode in (MODES | {Auto.name: Auto}).items()}
#: Names of modes, for type checkers.
ModeName = Literal["sync", "async", "allreduce", "hybrid", "auto"]


def get_mode(mode: str | Mode) -> Mode:
    """Return a mode by its name, or as it is; for "auto" see `Mode.begins`.

    Examples
    --------
    >>> get_mode("async").name
    'async'
    """
    if isinstance(mode, Mode):
        return mode
    if isinstance(mode, str) and mode in _NAMED:
        return _NAMED[mode]
    raise ValueError(
        f"The 'mode' parameter must be a str among {sorted(_NAMED)} or a Mode such as "
        f"dps.Async(). Got {mode!r} instead."
    )
