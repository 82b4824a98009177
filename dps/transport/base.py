"""The interface of a rank's access to one shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps._runtime.channel.base import ShardChannel
from dps._runtime.shared.activity import Activity
from dps.server.group.window import Window
from dps.server.shard import ChannelKind


class Link(Protocol):
    """A rank's access to one shard."""

    @property
    def window(self) -> Window | None:
        """The window, if it is mapped."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """The rank's counters, (WIDTH,): in the window, or a copy that is sent there."""

    def claim(self) -> None:
        """Claim the rank for this attempt."""

    def channel(
        self, kind: ChannelKind, shard: int, first: int, activity: Activity
    ) -> ShardChannel:
        """Make the channel for steps.

        kind: the channel in a window, from the mode.
        shard: number of the shard.
        first: the shard's first element of the whole vector.
        activity: the account for waits and work.
        """
        ...

    def call(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Call an operation (``server/group/operations.py``) with the rank's access to a window."""

    def account(self) -> None:
        """Write the rank's counters to the window."""

    def abort(self) -> None:
        """Stop the fit for all ranks because of an error here."""

    def close(self) -> None:
        """Release what belongs to this link only; may be called in any state."""
