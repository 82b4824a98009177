from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dps._kernels.rows import KeyedRows
from dps._runtime.activity import Activity
from dps._runtime.ends import End, HostEnd

Ending = Literal["ran", "gradient", "update", "stopped"]

ENDINGS: dict[int, Ending]

class Step:
    """A rank's steps over all of its shards.

    Parameters
    ----------
    rank : int
    ends : sequence of End
        One a shard, in order.
    params : (size,) array
        Where the parameters are, or come to lie after each push.
    total : (size,) array
        Where a mean or a broadcast comes to lie.
    version : int
        Updates that the parameters have.
    activity : Activity
    rates : Rates or None
        Of updates by keys.
    host : HostEnd or None
        Where ranks of a host sum first, so that one of them sends one message for all.
    """

    sequence: int
    version: int
    size: int
    rank: int
    n_shards: int
    activity: Activity
    ahead: bool
    def __init__(
        self,
        rank: int,
        ends: Sequence[End],
        params: NDArray[np.floating],
        total: NDArray[np.floating],
        version: int,
        activity: Activity,
        rates: Any = None,
        host: HostEnd | None = None,
    ) -> None: ...
    @property
    def single(self) -> bool: ...
    @property
    def busy(self) -> bool:
        """Whether a push is under way."""
    def expect(self, steps: int) -> None:
        """Begin an epoch of so many steps."""
    def lost(self) -> tuple[int, int]:
        """Rows that did not count, and rows that came late, since the last call."""
    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch of steps by keys."""
    def say(self) -> None:
        """Say at all shards, and on the rank's host, that it is alive; nobody is waited for."""
    def rest(self) -> int:
        """No steps follow in this epoch; the clock at its end, 0 where ranks have none."""
    @property
    def renews(self) -> bool:
        """Whether parameters are to be pulled before an epoch's first step."""
    def clock_distance(self) -> float:
        """How far ahead a step began since the last call, at most; NaN where nobody counts."""
    def pull(self) -> Ending:
        """Take the parameters as they are."""
    def hand_over(self, grad: NDArray[np.floating], rows: int, rate: float) -> Ending:
        """Hand over a gradient sum over some rows; the parameters that follow are in `params`."""
    def wait_for_answers(self) -> Ending:
        """Collect the answers of a push that is under way."""
    def staleness(self) -> tuple[float, float]:
        """Sum and largest staleness of pushes since the last call."""
    keys: KeyedRows
    def pull_touched(self) -> Ending:
        """Take the parameters at `keys`, where steps go by them, into `touched`."""
    @property
    def touched(self) -> NDArray[np.floating]:
        """The parameters that the last pull by keys has brought, a copy."""
    def meet(
        self, values: NDArray[np.floating], rows: int, notes: Sequence[float]
    ) -> tuple[Ending, NDArray[np.float64]]:
        """The sum over all ranks over the sum of their rows, in `total`; the sums of the notes."""
    def hand_out(
        self, values: NDArray[np.floating], notes: Sequence[float]
    ) -> tuple[Ending, NDArray[np.float64]]:
        """Rank 0's vector, in `total`; and its notes."""
