"""What only linear models need: how they are trained, and what their parameters are called.

Columns that do not occur are left out of wide local data, the intercept is kept at a centre of the
features, numbers count as those of deviation one, steps are in units of the features, and "auto"
chooses between L-BFGS and stochastic steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.cluster.base import Cluster
from dps.data.columns import Columns, occurring
from dps.data.inspection import DataSummary, Inspection
from dps.data.partitions import Partition
from dps.data.spread import far_means
from dps.data.targets import TargetEncoding
from dps.estimators.alpha import choose_alpha
from dps.estimators.choices import (
    check_stochastic,
    choose_batch_size,
    choose_full_batch,
    choose_optimizer,
    choose_replicas,
    choose_schedule,
    l1_ratio,
    takes_steps,
)
from dps.estimators.encoding import Encoding
from dps.estimators.family import Ask, Family, Recipe
from dps.models import LinearModel
from dps.optimizers import Averaged, Optimizer, get_optimizer
from dps.training.defaults import (
    asks_for_spread,
    auto_optimizer,
    damp_intercept,
    is_wide,
    set_units,
    wide_steps,
)
from dps.training.launch import touches_little
from dps.training.plan import batch_rows
from dps.training.state import TrainState, starting_state
from dps.training.stopping import StoppingRule

__all__ = ["LinearFamily"]


class LinearFamily(Family):
    """One fit of a linear model; see `Family` for what its methods do."""

    def __init__(self, estimator: Any) -> None:
        super().__init__(estimator)
        self._columns: Columns | None = None
        self._times: float = getattr(estimator, "_alpha_times", 1.0)
        self._tried: list[tuple[float, float]] = []
        self._chosen: dict[str, Any] = {}

    def check(self, ask: Ask) -> None:
        """L-BFGS honours some parameters only, and a schedule must be one."""
        estimator = self.estimator
        if ask.partial:
            check_stochastic(estimator)
        if estimator.alpha == "cv" and (ask.partial or estimator.penalty is None):
            one = "partial_fit sees a part of the rows" if ask.partial else "penalty=None has none"
            raise ValueError(f"alpha='cv' chooses a penalty on held-out rows, and {one}")
        self._optimizer = choose_optimizer(estimator, self.loss)
        choose_schedule(estimator, self._optimizer or get_optimizer("sgd"), 1.0)

    def inspection(self, ask: Ask, encoding: Encoding | None) -> Inspection:
        """Steps in units of the features ask how these vary."""
        estimator = self.estimator
        before = None if ask.start is None else ask.start.optimizer
        steps = takes_steps(estimator, self.loss, ask.mode, ask.tol)
        numbers = None
        if encoding is not None:
            numbers = encoding.encoder.encode.number_columns
            if self._columns is not None:
                numbers = tuple(np.flatnonzero(np.isin(self._columns.numbers, numbers)).tolist())
        return Inspection(
            spread=steps and asks_for_spread(self._optimizer, bool(estimator.average), before),
            numbers=numbers,
        )

    def drop_columns(self, ask: Ask, part: Partition) -> Partition:
        """Without columns that have no value: their coefficients start at zero, and stay there."""
        in_kernels = self._optimizer is None or self._optimizer.native is not None
        # A mean must know its start; only of kernels it is known that they leave zeros alone.
        if ask.start is not None or self.estimator.average or not in_kernels:
            return part
        X, self._columns = occurring(part.X)
        return Partition(X, part.y, part.weight)

    def select_columns(self, X: Any) -> Any:
        """Other columns have coefficients of zero."""
        return X if self._columns is None else self._columns.of(X)

    def try_out(self, ask: Ask, cluster: Cluster, summary: DataSummary) -> None:
        """The strength of the penalty."""
        if self.estimator.alpha == "cv":
            self._times, self._tried = choose_alpha(self.estimator, cluster, summary, ask.seed)

    def recipe(
        self,
        ask: Ask,
        summary: DataSummary,
        targets: TargetEncoding,
        n_outputs: int,
        encoding: Encoding | None,
    ) -> Recipe:
        """L-BFGS, or stochastic steps in units of the features."""
        estimator, start, loss = self.estimator, ask.start, self.loss
        dtype = summary.dtype if start is None else start.params.dtype
        model = LinearModel(
            summary.n_features, n_outputs, targets.loss, estimator.fit_intercept, dtype
        )
        if start is not None:
            start.check(model)
        # The scale makes weights sum to the rows, so this is one over their sum.
        unit = targets.scale / summary.total
        alpha = unit * self._times if isinstance(estimator.alpha, str) else float(estimator.alpha)
        self._chosen = {"alpha_": alpha}
        if self._tried:
            self._chosen["alpha_path_"] = np.array(self._tried) * [unit, 1.0]
        share = l1_ratio(estimator)
        if estimator.penalty is None:
            alpha = 0.0
        unscaled = encoding is not None and encoding.unscaled
        possible = ask.tol is not None and not unscaled
        wide = possible and is_wide(summary, alpha, alpha * share)
        batch_size = choose_batch_size(estimator, summary, wide)
        batch = batch_rows(batch_size, summary.total)
        optimizer = self._optimizer
        of_values = wide and optimizer is None and estimator.learning_rate == "auto"
        if of_values:
            optimizer, schedule = wide_steps(summary)
        else:
            optimizer = optimizer or auto_optimizer()
            steady = estimator._classification or ask.mode.deterministic
            few = steady and batch >= summary.total
            schedule = choose_schedule(estimator, optimizer, summary.reach(loss) or 1.0, few)
        if estimator.average:
            optimizer = Averaged(optimizer, start=(int(estimator.average) - 1) // batch)
        before = None if start is None else start.model
        centre, scale = (None, None) if before is None else (before.centre, before.scale)
        spread = None if of_values else summary.spread
        if summary.standards is not None and estimator.standardize and before is None:
            mean, scale = summary.standards
            centre = far_means(mean, scale)
        if spread is not None:
            centre = spread.centre(model.dtype)
        steps = takes_steps(estimator, loss, ask.mode, ask.tol)
        # Steps by keys would bring a centre to columns that they leave out.
        by_keys = touches_little(summary, model.layout.size, batch)
        if before is None or spread is not None:
            centre = centre if estimator.fit_intercept and steps and not by_keys else None
        model = model.of_features(centre, scale)
        params = self._initial(model, summary, start)
        state, fresh = starting_state(start, optimizer, model)
        if fresh:
            state = np.array(state)
            if of_values:
                damp_intercept(summary, model.layout, state)
            elif spread is not None:
                units = spread.scale(centre, model.dtype)
                units = units if scale is None else units / scale
                set_units(optimizer, units, model.layout, state)
        passes = choose_full_batch(
            estimator, loss, summary, ask.tol, alpha * share, alpha * (1.0 - share), wide
        )
        steps = steps or passes is None
        full_batch, finish = (None, passes) if steps else (passes, None)
        few_replicas = wide and full_batch is None
        return Recipe(
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            params=params,
            state=state,
            stopping=StoppingRule(
                ask.max_iter,
                ask.tol,
                estimator.n_iter_no_change,
                estimator.early_stopping,
                finishes=finish is not None,
            ),
            l1=alpha * share,
            l2=alpha * (1.0 - share),
            batch_size=batch_size,
            n_replicas=choose_replicas(
                estimator, ask.mode, summary, batch, model.layout.size, few_replicas
            ),
            full_batch=full_batch,
            finish=finish,
        )

    def _initial(
        self, model: LinearModel, summary: DataSummary, start: TrainState | None
    ) -> NDArray[np.floating]:
        if start is not None:
            before = start.model
            same = model.centre is model.scale is None
            if before is not None:
                same = before.centre is model.centre and before.scale is model.scale
            if same:
                return start.params
            plain = start.params if before is None else before.plain(start.params)
            moved: NDArray[np.floating] = model.from_plain(plain)
            return moved
        params: NDArray[np.floating] = model.initial()
        if model.fit_intercept and not self.estimator._classification:
            views = model.layout.views(params)
            views["intercept"][:] = self.loss.start(np.array(summary.target_mean))
        return params

    def restore_model(self, model: LinearModel) -> LinearModel:
        """The model of all columns, from that of the columns that occur."""
        columns = self._columns
        if columns is None:
            return model
        wide = LinearModel(
            columns.total, model.n_outputs, model.loss, model.fit_intercept, model.dtype
        )
        centre, scale = (
            None if each is None else columns.spread(each, 1, np.full(columns.total, other))
            for each, other in ((model.centre, 0.0), (model.scale, 1.0))
        )
        return wide.of_features(centre, scale)

    def restore_columns(self, recipe: Recipe, values: NDArray[np.floating]) -> NDArray[np.floating]:
        """Parameters and state of all columns, from those of the columns that occur."""
        if self._columns is None:
            return values
        model = self.restore_model(recipe.model)
        wide = np.empty((len(values), model.layout.size), model.dtype)
        wide[0] = model.initial()
        optimizer: Optimizer = recipe.optimizer
        if len(values) > 1:
            optimizer.initialize(wide[1:])
        spread: NDArray[np.floating] = self._columns.spread(values, model.n_outputs, wide)
        return spread

    def names(self, model: Any) -> list[str]:
        """`coef_` and `intercept_`."""
        return ["coef_", "intercept_"]

    def tensors(self, model: Any, params: NDArray[np.floating]) -> dict[str, NDArray[np.floating]]:
        """As users know them: the intercept is that at zero."""
        named = self.attributes(model, params)
        return {name: named[name] for name in self.names(model)}

    def from_tensors(
        self, model: Any, tensors: Mapping[str, NDArray[np.floating]]
    ) -> tuple[Any, NDArray[np.floating]]:
        """A model of features as they are."""
        plain = model.of_features(None, None)
        params = plain.initial()
        views = plain.layout.views(params)
        views["coef"][...] = np.atleast_2d(tensors["coef_"]).T
        if plain.fit_intercept:
            views["intercept"][...] = tensors["intercept_"]
        return plain, params

    def attributes(self, model: Any, params: NDArray[np.floating]) -> dict[str, Any]:
        """`coef_` and `intercept_`, and how strong the penalty was."""
        views = model.layout.views(model.plain(params))
        coef = np.ascontiguousarray(views["coef"].T)
        intercept = (
            views["intercept"].copy() if model.fit_intercept else np.zeros(len(coef), coef.dtype)
        )
        if not self.estimator._classification and model.n_outputs == 1:
            coef = coef[0]
        return {"coef_": coef, "intercept_": intercept, **self._chosen}
