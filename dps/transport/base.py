"""A rank's way to one shard, as the rest of dps sees it."""

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
    """A rank's way to one shard."""

    @property
    def window(self) -> Window | None:
        """The window, where it can be reached directly."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """The rank's row of what it does, (WIDTH,): the window's, or one that is sent there."""

    def claim(self) -> None:
        """Take the rank for this attempt."""

    def channel(
        self, kind: ChannelKind, shard: int, first: int, activity: Activity
    ) -> ShardChannel:
        """Make the channel that steps go through.

        kind: what the mode's steps do in a window.
        shard: its number.
        first: where its elements of the whole vector begin.
        activity: where waits and work are counted.
        """
        ...

    def call(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Call an operation (``server/group/operations.py``) with the rank's access to a window."""

    def account(self) -> None:
        """Have what the rank counts stand in the window."""

    def abort(self) -> None:
        """Stop the fit for all, because of an error here."""

    def close(self) -> None:
        """Give back what belongs to this link alone; it may be called in any state."""
