"""Where a fit has got to: what its next generation, or a later process, goes on from.

A fit goes on at the end of an epoch, so that each row of a closed epoch counts once. It must not
know who lost what, or where a position is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from dps.server.snapshots import Kept
from dps.training.history import EpochRecord

__all__ = ["Position"]


@dataclass(frozen=True)
class Position:
    """The state of a fit after its last closed epoch.

    Parameters
    ----------
    kept : Kept
        Parameters, optimizer state and their version then.
    history : tuple of EpochRecord
        Of all epochs that have been closed.
    best : Kept or None
        The same after the best epoch, where rows are held out and it was an earlier one.
    """

    kept: Kept
    history: tuple[EpochRecord, ...] = ()
    best: Kept | None = None

    @property
    def epochs(self) -> int:
        """Epochs closed."""
        return len(self.history)

    @property
    def last(self) -> EpochRecord | None:
        """The record of the last one."""
        return self.history[-1] if self.history else None
