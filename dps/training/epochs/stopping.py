"""The stopping rule: it turns the reports of an epoch into a record.

Whichever rank closes an epoch evaluates it. It is a pure function, so the rank does not matter.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dps.errors import NonFiniteError, ReplicaError
from dps.scores.validation import Score
from dps.training.epochs.records import EpochRecord, EpochReport

#: An epoch of steps that lowers the loss by a smaller share is on a plateau: passes over all rows
#: gain more in the same time.
_PLATEAU = 0.01


@dataclass(frozen=True)
class StoppingRule:
    """Stop when the loss has not improved by `tol` for some epochs, like scikit-learn's SGD.

    Examples
    --------
    >>> rule = StoppingRule(max_iter=2, tol=None, n_iter_no_change=5, validate=False)
    >>> reports = np.zeros((2, 15))
    >>> reports[:, 0], reports[:, 1] = (6.0, 4.0), 10
    >>> rule.decide(0, None, reports).loss
    0.5
    """

    max_iter: int  # largest number of epochs
    # Smallest improvement of the monitored loss that counts; None never stops early.
    tol: float | None
    n_iter_no_change: int  # consecutive epochs without an improvement that end the fit
    validate: bool  # whether the validation loss is monitored instead of the training loss
    # True if steps only reach a plateau, and passes over all rows complete the fit.
    finishes: bool = False
    # Score of the validation rows, monitored instead of their loss.
    score: Score | None = None
    unit: float = 1.0  # factor from the losses that ranks report to those of the record

    def decide(
        self, epoch: int, previous: EpochRecord | None, reports: NDArray[np.float64]
    ) -> EpochRecord:
        """Close an epoch.

        epoch: its number, from 0.
        reports: (n_ranks, >= 15) array, :class:`EpochReport` rows in rank order, with the report of
            the score behind.
        Raises NonFiniteError: the loss, or the score, is NaN or infinite.
        Raises ReplicaError: copies that should have the same bits have not.
        """
        width = len(EpochReport._fields)
        of_ranks = [EpochReport(*row) for row in reports[:, :width].tolist()]
        values = list(zip(*of_ranks, strict=True))
        for rank, report in enumerate(of_ranks):
            if report.digest != of_ranks[0].digest:
                raise ReplicaError(
                    f"after epoch {epoch + 1} the replica has other parameters than rank 0, which "
                    "an all-reduce must not lead to: is a worker's memory or processor broken?",
                    rank=rank,
                )
        # Added in rank order. Python's `sum` rounds differently in different versions.
        summed = EpochReport(*(functools.reduce(operator.add, ranks) for ranks in values))
        largest = EpochReport(*map(max, values))
        loss = self.unit * summed.loss_sum / summed.rows
        validation = math.nan
        if summed.validation_weight:
            validation = self.unit * summed.validation_sum / summed.validation_weight
        score = math.nan
        if self.score is not None and summed.validation_weight:
            sums = self.score._joined(list(reports[:, width:]))
            score = self.score._value(sums, summed.validation_weight)
        monitored = validation if self.validate else loss
        if not math.isfinite(monitored):
            raise NonFiniteError(
                f"the loss of epoch {epoch + 1} is {monitored}; "
                "lower learning_rate or scale the features"
            )
        if self.validate and self.score is not None:
            if not math.isfinite(score):
                raise NonFiniteError(
                    f"the score of epoch {epoch + 1} is {score}: is it defined on the rows for "
                    "validation? else use scoring='loss'"
                )
            monitored = -score
        best = math.inf if previous is None else previous.best
        previous_kept = epoch + 1 if previous is None else previous.kept
        bad = 0 if previous is None else previous.bad_epochs
        if self.tol is not None and not summed.full_batch:
            bad = bad + 1 if monitored > best - self.tol else 0
        plateau = 0 if previous is None else previous.plateau
        if self.finishes and not plateau and monitored > best - _PLATEAU * abs(best):
            plateau = epoch + 1
        stays = bad >= self.n_iter_no_change and not self.finishes
        converged = stays or summed.converged > 0
        return EpochRecord(
            epoch=epoch + 1,
            loss=loss,
            validation_loss=validation,
            validation_score=score,
            rows=int(summed.rows - summed.dropped),
            seconds=largest.seconds,
            staleness_mean=summed.stale_sum / max(1.0, summed.steps),
            staleness_max=largest.stale_max,
            clock_distance_max=largest.clock_distance,
            rows_dropped=int(summed.dropped + summed.skipped),
            rows_late=int(summed.late),
            best=min(best, monitored),
            kept=epoch + 1 if not self.validate or monitored < best else previous_kept,
            bad_epochs=bad,
            last=converged or epoch + 1 >= self.max_iter,
            converged=converged,
            full_batch=summed.full_batch > 0,
            plateau=plateau,
            rows_per_replica=tuple(int(report.rows - report.dropped) for report in of_ranks),
        )
