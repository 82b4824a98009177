"""Auto: a fit begins in sync, and goes on in the mode that its first steps speak for.

What is measured, and when, is ``training/run/mode_choice.py``'s; what follows from it is
``choosing.py``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dps.modes.base import Mode, StepSpec
from dps.modes.synchronous import Sync

if TYPE_CHECKING:
    from dps._runtime.step import Step
    from dps.server.shard import ChannelKind


@dataclass(frozen=True, repr=False, kw_only=True)
class Auto(Mode):
    """Sync, until another mode is chosen.

    Examples
    --------
    >>> Auto().begins
    Sync()
    """

    name: ClassVar[str] = "auto"

    @property
    def begins(self) -> Mode:
        """Sync."""
        return Sync(access=self.access)

    @property
    def channel(self) -> ChannelKind:
        """That of sync."""
        return self.begins.channel

    @property
    def deterministic(self) -> bool:
        """As sync, so that steps and L-BFGS are chosen as there."""
        return self.begins.deterministic

    def step(self, spec: StepSpec) -> Step:
        """That of sync."""
        return self.begins.step(spec)
