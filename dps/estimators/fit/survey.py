"""The request for a fit, the survey of its data, and the job that results from both.

Whatever depends on the model comes from the estimator, see `Trainable`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dps.cluster.options import Options
from dps.estimators.fit.encoding import Encoding
from dps.losses import Loss
from dps.losses.constants import best_constant, loss_of_mean, losses_of_constant
from dps.models import Model
from dps.optimizers import Optimizer
from dps.optimizers.schedules import Schedule

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from dps.cluster.base import Cluster
    from dps.data.columns import OccurringColumns
    from dps.data.feed.targets import TargetEncoding
    from dps.data.survey.labels import Labels
    from dps.data.survey.rows import DataSummary
    from dps.estimators.fit.loading import Loading
    from dps.estimators.fit.strength import Strength
    from dps.estimators.fit.validation import ValidationData
    from dps.modes import Mode
    from dps.scores.validation import Score
    from dps.training.epochs.stopping import StoppingRule
    from dps.training.job import FitResult, Job
    from dps.training.lbfgs.full_batch import FullBatch
    from dps.training.state import TrainState


#: Standard errors of a constant's loss that count as chance.
_ERRORS = 2.0


class Given(NamedTuple):
    """The arguments of a fit."""

    X: Any
    y: Any
    weight: Any
    validation: ValidationData | None = None
    start: TrainState | None = None  # the state that training continues from
    partial: bool = False  # whether this is one epoch of many
    classes: np.ndarray | None = None  # all labels that will ever occur
    reset: bool = True  # whether this is a first fit, which sets the columns
    encoded: Encoding | None = None  # the encoding that made the rows of X


@dataclass(eq=False)
class Request:
    """The request for a fit, before rows are looked at."""

    fit: str  # id of the fit
    estimator: BaseEstimator
    loss: Loss  # as given; `Survey.targets` has the one that is trained
    mode: Mode
    start: TrainState | None  # the state that training continues from
    max_iter: int  # largest number of epochs, as far as known before the survey
    tol: float | None
    seed: int
    partial: bool  # whether this is one epoch of many
    options: Options
    encoding: Encoding | None = None  # how a dataframe is encoded
    columns: OccurringColumns | None = None  # the columns that are trained on, if not all
    alike: NDArray[np.float64] | None = None  # targets of earlier calls, see `TrainState`
    #: The strength of the penalty once known; a resumed fit knows it at the start.
    strength: Strength | None = None
    #: Fitted attributes from planning, such as ``alpha_``.
    attributes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, estimator: BaseEstimator, given: Given, seed: int) -> Request:
        """Make the request from an estimator's parameters."""
        from dps.modes import get_mode
        from dps.training.job import new_fit_id

        start = given.start
        alike = None if start is None else start.alike
        if alike is not None:
            # No features have been learned yet, nor how targets vary: start again.
            start = None
        return cls(
            fit=new_fit_id(),
            estimator=estimator,
            loss=estimator._loss(),
            mode=get_mode(estimator.mode),
            start=start,
            alike=alike,
            max_iter=1 if given.partial else estimator._most_epochs,
            tol=None if given.partial else estimator.tol,
            seed=seed,
            partial=given.partial,
            options=Options.now(),
        )

    @property
    def goes_on_from_fit(self) -> bool:
        """True for a call of `partial_fit` after a `fit`."""
        return self.partial and self.start is not None and self.start.times is not None

    def score(self) -> Score | None:
        """Return the score that `scoring` names, or None for the loss."""
        if self.estimator.scoring == "loss":
            return None
        from dps.scores.all_rows import get_score  # imports scikit-learn's metrics

        return get_score(self.estimator.scoring, self.loss)


@dataclass(eq=False, kw_only=True)
class Survey(Request):
    """A request with facts about the data, from which an estimator's `_plan` decides."""

    cluster: Cluster  # holds the encoded rows
    summary: DataSummary
    targets: TargetEncoding
    n_outputs: int  # number of raw outputs
    loading: Loading  # reports the fits that are compared
    given: Labels | None = None  # labels of the user's validation data, if y is one column
    #: The loss on held-out rows that chose a penalty, and the loss of the best constant there.
    looked: tuple[float, float] | None = None

    def report(self, strength: Strength, unit: float) -> None:
        """Store the strength of the penalty; `unit` is the strength of "auto"."""
        self.strength = strength
        self.attributes |= strength.attributes(unit)

    @property
    def rows_so_far(self) -> int:
        """Rows of this call, and of the fit and the calls that `partial_fit` continues."""
        before = self.start if self.partial else None
        return self.summary.total + (0 if before is None else before.rows)

    def carry(self, job: Job, model: Model, result: FitResult) -> TrainState:
        """Return the state from which another call continues."""
        from dps.training.state import TrainState

        times: float | None = 1.0 if self.strength is None else self.strength.times
        if self.partial:
            times = None if self.start is None else self.start.times
        found = TrainState.after(
            self.start, job, model, result, self.alike_so_far(), self.rows_so_far, times
        )
        if self.partial or found.optimizer is None:
            return found
        # The result of a fit may be a mean over steps.
        return replace(found, params=found.optimizer.result(found.params, found.state))

    def alike_so_far(self) -> NDArray[np.float64] | None:
        """Return the targets of this and earlier calls if all are equal, else None."""
        summary, targets = self.summary, self.targets
        # A user's own model may learn even if targets do not vary.
        if self.start is not None or self.estimator._is_own:
            return None
        values = summary.targets.mean
        if targets.classes is not None and not targets.multilabel:
            values = np.searchsorted(targets.classes, summary.labels.classes).astype(np.float64)
            alike = len(values) == 1 and (self.alike is None or values[0] == self.alike[1])
        else:
            alike = not summary.targets.variance.any()
        weight = summary.targets.weight + (0 if self.alike is None else self.alike[0])
        return np.array([weight, *values]) if alike else None

    def no_better(self, validated: float) -> tuple[float, float] | None:
        """Return the loss on held-out rows and that of a constant, if the constant is as good.

        The constant is the best one for the training rows.

        validated: loss of early stopping's rows, or NaN; then the rows that chose a penalty count.
            If it is unknown which rows these are, the loss must exceed the constant's by more than
            chance.
        """
        targets = self.targets
        known = targets.loss.native is not None and targets.loss.has_probabilities
        if self.estimator._is_own or not known or targets.classes is None or targets.multilabel:
            return None
        found = self.looked
        if not math.isnan(validated):
            shares = self.class_shares()
            lost = losses_of_constant(targets.loss, shares)
            if self.given is not None:
                constant = np.average(lost, weights=self._weights_of(self.given))
            else:
                mean = np.average(lost, weights=shares)
                deviation = math.sqrt(np.average((lost - mean) ** 2, weights=shares))
                rows = self.summary.total * self.estimator.validation_fraction
                constant = mean + _ERRORS * deviation / math.sqrt(rows)
            found = validated, float(constant)
        return found if found is not None and found[0] >= found[1] else None

    def _weights_of(self, labels: Labels) -> NDArray[np.float64]:
        """Return the weight of each class in such rows."""
        assert self.targets.classes is not None
        weights = np.zeros(len(self.targets.classes))
        weights[np.searchsorted(self.targets.classes, labels.classes)] = labels.weights
        return weights * (1.0 if self.targets.class_weight is None else self.targets.class_weight)

    def class_shares(self) -> NDArray[np.float64]:
        """Return the class shares of a classification's rows, for `best_constant`.

        A class or label without rows gets a small share. If a stream starts without a class, its
        first rows are not typical: all shares are equal then.
        """
        summary, targets = self.summary, self.targets
        if targets.multilabel:
            shares = summary.targets.mean
            least = 0.5 / summary.total
            unknown = self.partial & ((shares <= 0) | (shares >= 1))
            return np.where(unknown, 0.5, np.clip(shares, least, 1 - least))
        weights = self._weights_of(summary.labels) * targets.scale
        if self.partial and not weights.all():
            return np.ones(len(weights))
        return np.where(weights > 0, weights, 0.5)

    def first_raw(self) -> NDArray[np.float64]:
        """Return the raw outputs that a classification starts from, which may be log odds."""
        loss = self.targets.loss  # a loss in Python is called on workers only
        if not loss.has_probabilities or loss.native is None:
            return np.zeros(self.n_outputs)
        return best_constant(loss, self.class_shares())[0]

    def _much(self) -> float:
        """Return the unit of `tol`: the loss of the best constant, or 1 for a loss in Python."""
        if self.estimator._is_own or self.targets.loss.native is None:
            return 1.0
        if self.targets.classes is not None:
            much = best_constant(self.targets.loss, self.class_shares())[1]
        else:
            much = loss_of_mean(self.loss, self.summary.targets.mean, self.summary.target_std)
        return much if 0 < much < np.inf else 1.0

    def job(  # noqa: PLR0913 - a plan names what it decides
        self,
        model: Model,
        optimizer: Optimizer,
        schedule: Schedule,
        *,
        params: NDArray[np.floating] | None = None,
        state: NDArray[np.floating] | None = None,
        l1: float = 0.0,
        l2: float = 0.0,
        stopping: StoppingRule | None = None,
        batch_size: int | str | None = None,
        n_replicas: int | str | None = None,
        full_batch: FullBatch | None = None,
        finish: FullBatch | None = None,
    ) -> Job:
        """Return the job of a fit; missing arguments follow from the estimator's parameters.

        params: (n,) array, the start; by default the last fit's if training continues, else
            ``model.initial(rng)``.
        state: (state_rows, n) array, initial optimizer state.
        l1, l2: strengths of the penalties on penalised coordinates.
        full_batch: passes over all rows in place of steps.
        finish: passes once steps are on a plateau.
        Raises ValueError: the last fit had another number of parameters.
        """
        from dps.training.epochs.stopping import StoppingRule
        from dps.training.job import Execution, Job
        from dps.training.position import InitialState, Position
        from dps.training.state import starting_state

        estimator, start = self.estimator, self.start
        if params is None and start is not None:
            start.check(model)
            params = start.params.astype(model.dtype, copy=False)
        elif params is None:
            params = model.initial(np.random.default_rng(self.seed))
        if state is None:
            state, _ = starting_state(start, optimizer, model)
        if stopping is None:
            stopping = StoppingRule(
                self.max_iter, self.tol, int(estimator.n_iter_no_change), estimator._stops_early,
                finishes=finish is not None,
            )  # fmt: skip
        if stopping.tol:
            stopping = replace(stopping, tol=stopping.tol * self._much())
        if self.targets.units is not None:
            stopping = replace(stopping, unit=self.targets.units.size)
        version, ids = (0, None) if start is None else (start.version, start.ids)
        holds_out = stopping.validate and not self.summary.validation
        return Job(
            fit=self.fit,
            model=model,
            targets=self.targets,
            optimizer=optimizer,
            schedule=schedule,
            l1=l1,
            l2=l2,
            mode=self.mode,
            stopping=stopping,
            position=Position(InitialState(params, state, version, ids)),
            epochs_before=0 if start is None else start.epochs,
            batch_size=estimator.batch_size if batch_size is None else batch_size,
            execution=Execution(
                estimator.n_replicas if n_replicas is None else n_replicas,
                self.options.n_shards, self.options.rebalance, float(self.options.timeout),
                self.options.on_data_loss == "drop", self.options.max_losses,
                self.options.fruitless_losses,
            ),
            seed=self.seed,
            shuffle=estimator.shuffle,
            validation_fraction=estimator.validation_fraction if holds_out else 0.0,
            full_batch=full_batch,
            finish=finish,
            name=type(estimator).__name__,
        )  # fmt: skip
