"""What is to be trained, and what comes of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dps.data.targets import TargetEncoding
from dps.models import Model
from dps.modes import Mode
from dps.optimizers import Optimizer
from dps.optimizers.schedules import Schedule
from dps.training.activity import RankActivity
from dps.training.full_batch import FullBatch
from dps.training.history import EpochRecord
from dps.training.plan import Plan
from dps.training.stopping import StoppingRule

__all__ = ["FitResult", "Job", "new_fit_id"]


class Trained(NamedTuple):
    """What a fit reports.

    Attributes
    ----------
    params : (n,) array
    ids : (2, keys) int64 array
        Of the rows of a table, see `dps.server.store.Kept`; empty without one.
    """

    params: NDArray[np.floating]
    ids: NDArray[np.int64]


#: Told of closed epochs and how to get parameters; whether the fit is to end.
OnEpochs = Callable[[Sequence[EpochRecord], Callable[[], Trained | None]], bool]


@dataclass(frozen=True)
class Job:
    """What is to be trained, and how.

    Parameters
    ----------
    fit : str
        Id of the fit.
    model : Model
    targets : TargetEncoding
    optimizer : Optimizer
    schedule : Schedule
    l1, l2 : float
        Strengths of the penalties on the penalised coordinates.
    mode : Mode
    stopping : StoppingRule
    params : (n,) array
        Where to start.
    state : (state_rows, n) array
        Optimizer state to start from.
    version : int
        Updates behind them.
    epochs_before : int
        Epochs behind them.
    batch_size, n_replicas, n_shards : int or "auto"
    rebalance : bool or "auto"
        Whether rows may be copied to other workers.
    seed : int
    shuffle : bool or "global"
        A fresh order each epoch; "global": of rows that are exchanged before the first one,
        but for L-BFGS, which sums over all rows in any order.
    validation_fraction : float
        Share of the rows that are kept for validation; 0: none of those that are given to train.
    timeout : float
        Seconds without progress that are an error.
    full_batch : FullBatch or None
        Train on all rows at once rather than by stochastic steps.
    finish : FullBatch or None
        Do so once these are on a plateau.
    ids : (2, keys) int64 array, optional
        Of the rows of a table that `params` has, see `Kept`; None: no row has been made.
    on_epochs : callable, optional
        Called in the caller's thread, a few times a second, with the records of the epochs that
        have been closed since, and a function that returns the parameters after the last of
        them (None where the fit is further already). True ends the fit.
    name : str
        What is fitted, in the words of its user: the estimator's class.
    """

    fit: str
    model: Model
    targets: TargetEncoding
    optimizer: Optimizer
    schedule: Schedule
    l1: float
    l2: float
    mode: Mode
    stopping: StoppingRule
    params: NDArray[np.floating]
    state: NDArray[np.floating]
    version: int
    epochs_before: int
    batch_size: int | str
    n_replicas: int | str
    n_shards: int | str
    rebalance: bool | str
    seed: int
    shuffle: bool | str
    validation_fraction: float
    timeout: float
    full_batch: FullBatch | None = None
    finish: FullBatch | None = None
    ids: NDArray[np.int64] | None = None
    on_epochs: OnEpochs | None = None
    name: str = ""

    @property
    def method(self) -> str:
        """How steps are made, in the words of people."""
        if self.full_batch is not None:
            return "L-BFGS"
        return type(getattr(self.optimizer, "base", self.optimizer)).__name__


@dataclass(frozen=True)
class FitResult:
    """What a fit ended with: the state at the end of its last closed epoch.

    Attributes
    ----------
    reported : Trained
    raw_params : (n,) array
        The parameters to carry on from.
    state : (state_rows, n) array
    version : int
    history : list of EpochRecord
    plan : Plan
    activity : list of RankActivity
        What each replica did, in rank order; those that did not end are missing.
    error : BaseException or None
        What cut the fit short, to be raised once the rest has been kept.
    unshared : tuple of str or None
        Of each shard why it has no shared memory, where that was wanted.
    """

    reported: Trained
    raw_params: NDArray[np.floating]
    state: NDArray[np.floating]
    version: int
    history: list[EpochRecord]
    plan: Plan
    activity: list[RankActivity]
    error: BaseException | None
    unshared: tuple[str | None, ...]


def new_fit_id() -> str:
    """An id that no other fit has."""
    return secrets.token_hex(6)
