"""The state of training from which another fit continues.

`partial_fit`, `warm_start` and saved estimators use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps.models import Model
from dps.optimizers import Optimizer
from dps.server.store.snapshots import Snapshot as Snapshot

if TYPE_CHECKING:
    from dps.training.job import FitResult, Job


@dataclass(frozen=True)
class TrainState:
    """The state that a fit starts from."""

    # (n,); for a model with a table: its current rows, then the other parameters.
    params: NDArray[np.floating]
    model: Any = None  # the model of the parameters; None if the user guarantees that they fit
    # (state_rows, n) None: the optimizer's own initial state.
    state: NDArray[np.floating] | None = None
    optimizer: Optimizer | None = None  # the optimizer of the state
    version: int = 0  # updates and epochs so far
    epochs: int = 0
    rows: int = 0  # rows of the last `fit` and of the calls of `partial_fit` since
    #: Strength of the penalty that the last `fit` chose, as a multiple of "auto"; None without a
    #: `fit`.
    times: float | None = None
    # (2, rows) the rows of a table, see `dps.server.store.snapshots.Snapshot`.
    ids: NDArray[np.int64] | None = None
    #: (1 + n,) weight and values of the targets (numbers of classes) while all were equal.
    alike: NDArray[np.float64] | None = None

    def check(self, model: Model) -> None:
        """Raise unless the model has equally many parameters."""
        wanted = model.layout.with_rows(0 if self.ids is None else self.ids.shape[1]).size
        check_unchanged({"the number of parameters": (self.params.size, wanted)})

    def _has_state_of(self, optimizer: Optimizer) -> bool:
        shape = optimizer.state_rows, self.params.size
        known = self.state is not None and self.state.shape == shape
        return known and _kinds(self.optimizer) == _kinds(optimizer)

    @classmethod
    def after(
        cls,
        start: TrainState | None,
        job: Job,
        model: Model,
        result: FitResult,
        alike: NDArray[np.float64] | None,
        rows: int,
        times: float | None,
    ) -> TrainState:
        """Return the state after a fit that started there."""
        stepped = not result.history[-1].full_batch  # else the state is still the initial one
        return cls(
            params=result.kept.params,
            model=model,
            state=result.kept.state if stepped else None,
            optimizer=job.optimizer if stepped else None,
            version=result.kept.version,
            epochs=len(result.history) + (0 if start is None else start.epochs),
            ids=result.kept.ids if model.layout.table is not None else None,
            alike=alike,
            rows=rows,
            times=times,
        )


def check_unchanged(pairs: Mapping[str, tuple[Any, Any]]) -> None:
    """Raise unless the last fit and this one agree in all named values.

    Examples
    --------
    >>> check_unchanged({"features of X": (8, 8), "n_factors": (16, 8)})
    Traceback (most recent call last):
    ValueError: the fit cannot start from the last one: n_factors was 16 and is now 8; \
train a clone, or set warm_start=False
    """
    for name, (before, now) in pairs.items():
        if before != now:
            raise ValueError(
                f"the fit cannot start from the last one: {name} was {before} and is now {now}; "
                "train a clone, or set warm_start=False"
            )


def starting_state(
    start: TrainState | None, optimizer: Optimizer, model: Model
) -> tuple[NDArray[np.floating], bool]:
    """Return the initial optimizer state, (state_rows, n), and whether it is fresh.

    It is the start's state if optimizer and model are the same. It is read-only.
    """
    if start is not None and start.state is not None and start._has_state_of(optimizer):
        return start.state, False
    size = model.layout.with_rows(0).size if start is None else start.params.size
    alike = optimizer.native is not None  # then all columns are equal, and one stands for them
    state = np.zeros((optimizer.state_rows, 1 if alike else size), model.dtype)
    optimizer.initialize(state)
    return np.broadcast_to(state, (optimizer.state_rows, size)), True


def _kinds(optimizer: Any) -> tuple[Any, Any]:
    return type(optimizer), type(getattr(optimizer, "base", None))
