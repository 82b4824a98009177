"""The choice of a penalty by cross-validation with as few fits as possible.

A function returns the losses of held-out rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Least share of the loss that a penalty must save to replace "auto", by default.
_GAIN = 1e-2
#: Standard errors within which a penalty may still win.
_ERRORS = 2.0
#: Smallest and largest power of ten.
REACH = -8.0, 8.0


class Penalty(NamedTuple):
    """A candidate: a multiple of the strength of "auto", with or without standardized columns."""

    power: float  # power of ten
    standardize: bool


class Losses(NamedTuple):
    """Losses of held-out rows, summed in random groups."""

    loss: NDArray[np.float64]  # (n_groups,) weighted sums
    weight: NDArray[np.float64]  # (n_groups,) sums of weights
    least: float = 0.0  # loss of exact predictions
    #: (1,) mean loss of a misclassified row, empty for a regression. It counts as one more row over
    #: all folds: even if all held-out rows are classified correctly, the next one may not be.
    wrong: NDArray[np.float64] = np.empty(0)


class Race:
    """The competition of penalties for the lowest loss on held-out rows.

    losses_of: takes a penalty and the number of a fold, and returns `Losses`.
    stronger_first: which neighbour of a penalty to try first; the other may not be needed.
    reach: smallest and largest power of ten.
    sure: standard errors by which a penalty must lower the loss.
    least: share of the loss that it must save; smaller savings count less than being close to
        "auto".
    """

    def __init__(
        self,
        losses_of: Callable[[Penalty, int], Losses],
        n_folds: int,
        stronger_first: bool = True,
        sure: float = _ERRORS,
        least: float = _GAIN,
        reach: tuple[float, float] = REACH,
    ) -> None:
        self._losses_of = losses_of
        self._n_folds = n_folds
        self._sure, self._least = sure, least
        self._sides = (1.0, -1.0) if stronger_first else (-1.0, 1.0)
        self._reach = reach
        self._losses: dict[Penalty, list[Losses]] = {}

    def run(self, kinds: Sequence[bool]) -> Penalty:
        """Return "auto", or a penalty that is certainly better.

        Each fold takes three steps:

        1. Penalties ten times as strong and as weak as the best join the race, until neither lowers
           the loss by a tenth of `least`.
        2. The leader is the penalty nearest to "auto" whose loss is within `least` of the lowest.
           It wins if it is better than "auto" by `sure` standard errors of the differences, or
           the root between it and its better neighbour does. "auto" wins if the leader cannot
           lower its loss by `least`.
        3. Other penalties leave if they cannot lower the leader's loss by `least`.

        After the last fold "auto" wins.

        kinds: values of ``Penalty.standardize`` to try, first that of "auto".

        Examples
        --------
        >>> def losses_of(penalty, fold):
        ...     return Losses(1 + (penalty.power + 1.6) ** 2 + np.zeros(9), np.ones(9))
        >>> race = Race(losses_of, n_folds=5)
        >>> best = race.run([True])
        >>> best.power, [round(loss, 2) for _, loss in race.tried(best)]
        (-1.5, [7.76, 3.56, 1.36, 1.01, 1.16, 2.96])
        """
        auto = Penalty(0.0, kinds[0])
        running = [Penalty(0.0, kind) for kind in kinds]
        for fold in range(self._n_folds):
            for one in running:
                self._look(one, fold)
            self._climb(auto, running, fold)
            best = self._nearest(auto, running, self._least)
            least = self._least * self._mean(best, above=True)
            gain, error = self._gain(best, auto)
            if gain + _ERRORS * error < least:
                return auto
            if gain > self._sure * error or self._mean(auto) == np.inf:
                return self._refined(auto, best, fold)
            for one in [one for one in running if one not in (auto, best)]:
                gain, error = self._gain(one, best)
                if not gain + _ERRORS * error >= least:  # also if it is NaN
                    running.remove(one)
        return auto

    def _refined(self, auto: Penalty, best: Penalty, fold: int) -> Penalty:
        """Return the better of a penalty and the root between it and its better neighbour."""
        beside = [one for one in self._beside(best) if one in self._losses]
        near = min(beside or [best], key=self._mean)
        root = best._replace(power=(best.power + near.power) / 2)
        self._look(root, fold)
        return self._nearest(auto, [best, root], self._least)

    def tried(self, best: Penalty) -> list[tuple[Penalty, float]]:
        """Return all penalties with their mean loss, the strongest of each kind first.

        A penalty that left early has the best one's loss plus the difference on common folds.
        """
        found = []
        for one in sorted(self._losses, key=lambda one: (not one.standardize, -one.power)):
            ours, theirs = self._losses[one], self._losses[best]
            loss = _plain(theirs) + _plain(ours) - _plain(theirs[: len(ours)])
            if np.isfinite(loss):
                found.append((one, loss))
        return found

    def _look(self, one: Penalty, fold: int) -> None:
        """Evaluate a penalty on all folds up to this one."""
        seen = self._losses.setdefault(one, [])
        while len(seen) <= fold:
            seen.append(self._losses_of(one, len(seen)))

    def _climb(self, auto: Penalty, running: list[Penalty], fold: int) -> None:
        """Add neighbours of the best penalty."""
        while True:
            best = self._nearest(auto, running, self._least / 10)
            new = [one for one in self._beside(best) if one not in self._losses]
            if not new:
                return
            self._look(new[0], fold)
            running.append(new[0])

    def _beside(self, one: Penalty) -> list[Penalty]:
        """Return penalties ten times as strong and as weak, within reach."""
        powers = (np.clip(one.power + side, *self._reach) for side in self._sides)
        return [one._replace(power=float(power)) for power in powers]

    def _nearest(self, auto: Penalty, running: list[Penalty], share: float) -> Penalty:
        """Return the penalty nearest to "auto" whose loss is within a share of the lowest."""
        best = min(running, key=self._mean)
        most = self._mean(best) + share * self._mean(best, above=True)
        alike = (one for one in running if self._mean(one) <= most)
        return min(alike, key=lambda one: (abs(one.power), one.standardize != auto.standardize))

    def _mean(self, one: Penalty, above: bool = False) -> float:
        """Return the mean loss, or its excess over exact predictions; infinite if not finite."""
        loss, weight = self._joined(self._losses[one])
        least = sum(part.least for part in self._losses[one]) if above else 0.0
        mean = float((loss.sum() - least) / weight.sum())
        return mean if np.isfinite(mean) else np.inf

    def _gain(self, one: Penalty, other: Penalty) -> tuple[float, float]:
        """Return the difference between two penalties' losses on common folds, and its error."""
        pairs = zip(self._losses[one], self._losses[other], strict=False)
        (ours, weight), (theirs, _) = (self._joined(parts) for parts in zip(*pairs, strict=True))
        gain = theirs - ours
        mean = gain.sum() / weight.sum()
        return float(mean), float(np.linalg.norm(gain - mean * weight) / weight.sum())

    def _joined(self, parts: Sequence[Losses]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return losses and weights of all groups and of a share of the misclassified row."""
        wrong = np.mean([part.wrong for part in parts], axis=0)
        share = np.full(len(wrong), len(parts) / self._n_folds)
        loss = np.concatenate([*(part.loss for part in parts), share * wrong])
        return loss, np.concatenate([*(part.weight for part in parts), share])


def _plain(parts: Sequence[Losses]) -> float:
    """Return the mean loss of held-out rows."""
    return float(sum(part.loss.sum() for part in parts) / sum(part.weight.sum() for part in parts))
