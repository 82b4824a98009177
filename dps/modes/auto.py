"""Auto: a fit begins in sync, and continues in the mode that its first steps suggest.

``training/run/mode_choice.py`` measures, and ``choosing.py`` chooses.
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
        """The channel of sync."""
        return self.begins.channel

    @property
    def deterministic(self) -> bool:
        """True like sync, so that steps and L-BFGS are chosen as for sync."""
        return self.begins.deterministic

    def _step(self, spec: StepSpec) -> Step:
        """Make the step of sync."""
        return self.begins._step(spec)
