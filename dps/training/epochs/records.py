"""The record of an epoch: as a rank reports it, as a window stores it, as users see it.

A window stores a record as a row of doubles; this module defines them. pandas and matplotlib are
imported only for a frame or a plot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray


class EpochReport(NamedTuple):
    """One rank's report on an epoch."""

    loss_sum: float  # weighted sum of training losses, each computed when its batch was used
    rows: int  # training rows used
    validation_sum: float  # weighted sum of validation losses, and the sum of weights
    validation_weight: float
    seconds: float  # wall time
    stale_sum: float  # sum of the staleness of its pushes
    stale_max: float
    steps: int  # steps with rows
    # 1: the epoch was a pass over all rows, which has its own criterion of progress.
    full_batch: int = 0
    converged: int = 0  # 1: no further improvement is expected
    # Largest number of steps ahead of the slowest rank; NaN if ranks do not count steps.
    clock_distance: float = math.nan
    # Rows that the rank did not use because other ranks had completed those steps.
    skipped: int = 0
    dropped: int = 0  # rows that the rank used, but whose gradients did not count
    # Rows whose gradients came too late for their own step, whether or not they counted later.
    late: int = 0
    digest: int = 0  # digest of the rank's copy of parameters and state; 0 if it holds none

    def row(self, score: Sequence[float] | NDArray[np.float64] = ()) -> NDArray[np.float64]:
        """Return the report as doubles, followed by the report of a validation score."""
        own = np.array(self, np.float64)
        return np.concatenate([own, score]) if len(score) else own


class EpochRecord(NamedTuple):
    """The record of a closed epoch."""

    epoch: int  # number of the epoch, from 1
    loss: float  # mean training loss during the epoch, without the penalty
    validation_loss: float  # NaN without validation rows
    validation_score: float  # NaN without a score
    rows: int  # training rows of all replicas whose gradients counted
    seconds: float  # wall time of the slowest replica
    staleness_mean: float  # updates between a replica's pull and its push
    staleness_max: float
    # Largest number of steps that a replica was ahead of the slowest one when it began a step; NaN
    # if replicas do not count steps.
    clock_distance_max: float
    rows_dropped: int  # training rows that did not count because other replicas were faster
    # Training rows whose gradients came too late for their own step. They are among the dropped
    # rows or counted in a later step.
    rows_late: int
    best: float  # lowest monitored loss so far, or minus the highest score
    # The epoch whose parameters the fit keeps: the best one on validation rows, or without them the
    # last one.
    kept: int
    bad_epochs: int  # consecutive epochs without an improvement
    last: bool  # whether the fit ends with this epoch
    converged: bool  # whether it ends because no further improvement is expected
    # True for a pass over all rows, which all replicas wait for.
    full_batch: bool
    # Epoch after which steps gain so little that passes over all rows follow; 0: none so far.
    plateau: int
    # Training rows of each replica that counted, in rank order; they sum to `rows`.
    rows_per_replica: tuple[int, ...]

    def row(self) -> tuple[float, ...]:
        """Return the record as doubles, followed by the number of replicas and their rows."""
        *values, replicas = self
        return tuple(map(float, (*values, len(replicas), *replicas)))

    @classmethod
    def from_row(cls, row: Sequence[float] | NDArray[np.float64]) -> EpochRecord:
        """Return the record of a row of doubles."""
        numbers = np.asarray(row).tolist()
        n, *replicas = numbers[len(_KINDS) :]
        values: list[Any] = [
            kind(value) for kind, value in zip(_KINDS.values(), numbers, strict=False)
        ]
        return cls._make([*values, tuple(map(int, replicas[: int(n)]))])

    @classmethod
    def unknown(cls, epoch: int, n_replicas: int) -> EpochRecord:
        """Return a record for a closed epoch whose report is lost."""
        values: dict[str, Any] = {
            name: math.nan if kind is float else kind() for name, kind in _KINDS.items()
        }
        values |= {"epoch": epoch, "kept": epoch, "seconds": 0.0}
        return cls(**values, rows_per_replica=(0,) * n_replicas)

    @property
    def rows_per_second(self) -> float:
        """Rows per second of all replicas; NaN if unknown."""
        if self.seconds > 0:
            return self.rows / self.seconds
        return math.inf if self.rows else math.nan

    def line(self) -> str:
        """Return the line for the log.

        Examples
        --------
        >>> EpochRecord(
        ...     3, 0.5, 0.625, 0.9, 1000, 0.25, 0.0, 0.0, 0.0, 0, 0, 0.5, 3, 0, False, False, False,
        ...     0, (1000,),
        ... ).line()
        'epoch 3: loss 0.5, validation loss 0.625, score 0.9, 0.25 s, 4,000 rows/s'
        """
        validated = not math.isnan(self.validation_loss)
        validation = f"validation loss {self.validation_loss:.6g}, " if validated else ""
        if not math.isnan(self.validation_score):
            validation += f"score {self.validation_score:.6g}, "
        if self.rows_dropped:
            validation += f"{self.rows_dropped:,} rows dropped, "
        return (
            f"epoch {self.epoch}: loss {self.loss:.6g}, {validation}{self.seconds:.2f} s, "
            f"{self.rows_per_second:,.0f} rows/s"
        )

    def as_dict(self, kept: int) -> dict[str, Any]:
        """Return the epoch's dict in ``history_``; the fit kept the parameters of epoch `kept`."""
        shown = {name: value for name, value in self._asdict().items() if name not in _INTERNAL}
        shown = {n: value for n, value in shown.items() if n not in ASKED or not math.isnan(value)}
        return shown | {"kept": self.epoch == kept, "rows_per_second": self.rows_per_second}


#: The numbers of a record with their types, and the fields that users do not see.
_KINDS: dict[str, type] = {
    name: kind for name, kind in get_type_hints(EpochRecord).items() if name != "rows_per_replica"
}
_INTERNAL = {"best", "kept", "bad_epochs", "last", "converged", "plateau"}
#: Numbers of an epoch in ``history_``, except the rows of each replica.
SHOWN: dict[str, type] = {
    **{name: kind for name, kind in _KINDS.items() if name not in _INTERNAL},
    "kept": bool,
    "rows_per_second": float,
}
#: Fields that are left out of ``history_`` if they are NaN.
ASKED = "validation_score", "clock_distance_max"


class History(list[dict[str, Any]]):
    """The epochs of a fit: a list with a dict per epoch, which makes a frame and a plot.

    ``kept`` is True for the epoch whose parameters the model has: the best one with
    `early_stopping`, else the last one.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dps import LinearClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> history = LinearClassifier(random_state=0).fit(X, y).history_
    >>> history
    History(..., loss ... to ..., ... s)
    >>> history[-1]["rows"]
    150
    >>> list(history.to_frame()[["loss", "seconds"]].columns)
    ['loss', 'seconds']
    """

    def __repr__(self) -> str:
        if not self:
            return "History()"
        first, last = self[0], self[-1]
        epochs = f"{len(self)} epoch{'s' if len(self) > 1 else ''}"
        seconds = sum(record["seconds"] for record in self)
        return f"History({epochs}, loss {first['loss']:.4g} to {last['loss']:.4g}, {seconds:.3g} s)"

    def to_frame(self) -> Any:
        """Return a :class:`pandas.DataFrame` with one row per epoch and the epoch as index."""
        import pandas as pd

        return pd.DataFrame(list(self)).set_index("epoch")

    def plot(self, axes: Any = None) -> Any:
        """Plot the loss and, below it, the throughput by epoch; needs matplotlib.

        axes: two axes to draw on; by default a new figure.
        Returns array of two matplotlib axes.
        """
        if axes is None:
            import matplotlib.pyplot as plt

            _, axes = plt.subplots(2, sharex=True, layout="constrained", height_ratios=(2, 1))
        losses, rates = axes
        epochs = [record["epoch"] for record in self]
        losses.plot(epochs, [record["loss"] for record in self], label="training")
        validation = [record["validation_loss"] for record in self]
        if not all(map(math.isnan, validation)):
            losses.plot(epochs, validation, label="validation", linestyle="--")
            losses.legend()
        rates.plot(epochs, [record["rows_per_second"] for record in self])
        losses.set_ylabel("loss")
        rates.set_ylabel("rows/s")
        rates.set_ylim(bottom=0)
        rates.set_xlabel("epoch")
        return axes
