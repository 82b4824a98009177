"""The part of the scikit-learn contract that every estimator shares.

Turns constructor parameters and user's containers into a job, runs it where it should
run, and keeps its result. It knows no mode, no optimizer and no loss by name.
"""

from __future__ import annotations

import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from html import escape
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import validate_data

from dps.cluster.choice import client_of, cluster_for
from dps.data.alignment import in_memory, partitions_of
from dps.data.blocks import as_rows
from dps.data.columns import Columns, occurring
from dps.data.defects import defect_of_structure
from dps.data.inspection import DataSummary, combine, inspect_partition
from dps.data.partitions import (
    Partition,
    as_pandas,
    check_columns,
    check_names,
    is_dask,
    is_frame,
    is_list,
    meta_of,
)
from dps.data.targets import TargetEncoding
from dps.estimators.callbacks import FRAMES, CallbackSupportMixin, with_callbacks
from dps.estimators.choices import (
    choose_batch_size,
    choose_full_batch,
    choose_optimizer,
    choose_replicas,
    choose_schedule,
    l1_ratio,
    takes_steps,
)
from dps.estimators.encoding import Encoding, encoding_for, select
from dps.estimators.interrupts import Interrupts
from dps.estimators.start import Start
from dps.estimators.viewers import Viewers
from dps.losses import Loss
from dps.models import Model
from dps.modes import Mode, get_mode
from dps.optimizers import Averaged, Optimizer, get_optimizer
from dps.optimizers.schedules import Schedule
from dps.preprocessing import FrameEncoder
from dps.training.defaults import (
    asks_for_spread,
    auto_optimizer,
    calm_intercept,
    is_wide,
    set_units,
    wide_steps,
)
from dps.training.history import History
from dps.training.job import FitResult, Job, new_fit_id
from dps.training.launch import touches_little
from dps.training.plan import batch_rows
from dps.training.report import FitReport, report_of
from dps.training.stopping import StoppingRule
from dps.training.trainer import train

__all__ = ["DistributedEstimator"]


class DistributedEstimator(CallbackSupportMixin, BaseEstimator, metaclass=ABCMeta):
    """Base of the estimators: parameters, places to run, and what a fit leaves."""

    _classification: bool

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "loss": [str, Loss],
        "penalty": [StrOptions({"l1", "l2", "elasticnet"}), None],
        "alpha": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "shuffle": ["boolean", StrOptions({"global"})],
        "random_state": ["random_state"],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "average": ["boolean", Interval(Integral, 1, None, closed="left")],
        "verbose": ["verbose"],
        "optimizer": [str, Optimizer],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), str, Schedule],
        "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "mode": [str, Mode],
        "n_replicas": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "n_shards": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "rebalance": ["boolean", StrOptions({"auto"})],
        "cache": [StrOptions({"auto", "memory", "disk"}), None],
        "encoder": [FrameEncoder, StrOptions({"auto"})],
        "client": "no_validation",
        "timeout": [Interval(Real, 0, None, closed="neither")],
    }

    @abstractmethod
    def _make_model(self, loss: Loss, n_features: int, n_outputs: int, dtype: Any) -> Any:
        """The model for data of this shape."""

    @abstractmethod
    def _keep(self, model: Model, params: NDArray[np.floating]) -> None:
        """Set the fitted attributes from the model's flat parameters."""

    @abstractmethod
    def _loss(self) -> Loss:
        """The loss as the user gave it."""

    @with_callbacks
    def _run(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> Self:
        """Fit, and keep what came of it; see `_run_on`."""
        X, y, sample_weight = as_pandas(X), as_pandas(y), as_pandas(sample_weight)
        with client_of(self.client, self.timeout) as client:
            return self._run_on(client, X, y, sample_weight, **options)

    def _run_on(
        self,
        client: Any,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        start: Start,
        max_iter: int,
        tol: float | None,
        classes: NDArray[Any] | None = None,
        reset: bool = True,
    ) -> Self:
        viewers = Viewers(self, X, y, sample_weight, max_iter)
        # Everything that can be wrong with parameters is found before any data moves.
        mode, loss = get_mode(self.mode), self._loss()
        optimizer = choose_optimizer(self, loss)
        choose_schedule(self, optimizer or get_optimizer("sgd"), 1.0)
        encoding = encoding_for(self, X, going_on=start.params is not None)
        prepare = None
        if encoding is not None:
            X = select(self, encoding.encoder, X, reset and not encoding.fitted)
            if is_dask(X):
                prepare = encoding.prepare(X)
            else:
                X = encoding.encode(X)
        partitions, whole = self._partitions(
            client, X, y, sample_weight, reset, encoding is not None
        )
        columns = None
        in_kernels = optimizer is None or optimizer.native is not None
        # A mean must know its start; only of kernels it is known that they leave zeros alone.
        if whole and start.params is None and not self.average and in_kernels:
            part = partitions[0]
            X, columns = occurring(part.X)
            partitions = [Partition(X, part.y, part.weight)]
        fit = new_fit_id()
        cluster = cluster_for(client, fit, self.timeout)
        interrupts = Interrupts()
        try:
            most = None if self.n_replicas == "auto" else int(self.n_replicas)
            holders = cluster.load(partitions, prepare, self.cache, most)
            if encoding is not None:
                encoding.complete(cluster)
            steps = takes_steps(self, loss, mode, tol)
            looks = cluster.map(
                inspect_partition,
                classification=self._classification,
                loss=loss,
                spread=steps and asks_for_spread(optimizer, bool(self.average), start.optimizer),
            )
            summary = combine(looks, classification=self._classification, whole=whole)
            if is_list(X) or (is_dask(X) and summary.columns is not None):
                self._check_found(summary, reset and is_list(X))
            cluster.replace(_as_rows, summary.unreadable)
            model, targets, classes = self._describe(loss, summary, classes, start)
            may_be_wide = tol is not None and not (encoding is not None and encoding.unscaled)
            job = self._job(
                fit, mode, optimizer, model, targets, summary, start, max_iter, tol, may_be_wide
            )
            model = job.model
            fitted = partial(self._fitted, model, columns, classes, encoding)
            job = viewers.watch(job, fitted)
            result = train(job, summary, holders, cluster, interrupts.hold)
        except BaseException as error:
            with interrupts:
                failed = _first_failure(viewers.close, cluster.close)
            if failed is not None:
                error.add_note(f"and then, while the fit was cleared away: {failed!r}")
            raise
        with interrupts:
            failed = _first_failure(viewers.close, cluster.close)
            if classes is not None:
                self.classes_ = classes
            self.encoder_ = None if encoding is None else encoding.encoder
            if columns is not None:
                model, result = self._spread(columns, model, result, job.optimizer)
            self._take(model, result)
            self._carry = start.after(job, model, result)
            self.fit_report_ = report_of(type(self).__name__, job, result)
        for after in (result.error, failed, KeyboardInterrupt() if interrupts.held else None):
            if after is not None:
                raise after
        viewers.end()
        if tol is not None and result.history[-1].last and not result.history[-1].converged:
            warnings.warn(
                f"the loss still improved by more than tol={tol:g} after max_iter={max_iter} "
                "epochs: raise max_iter, or tol",
                ConvergenceWarning,
                stacklevel=4 + FRAMES,
            )
        return self

    def _spread(
        self, columns: Columns, model: Any, result: FitResult, optimizer: Optimizer
    ) -> tuple[Model, FitResult]:
        """Model and result of all columns, from those of the columns that occur."""
        wide = self._widened(model, columns)
        state = np.empty((len(result.state), wide.layout.size), model.dtype)
        optimizer.initialize(state)
        params, raw = (
            columns.spread(flat, model.n_outputs, wide.initial())
            for flat in (result.params, result.raw_params)
        )
        state = columns.spread(result.state, model.n_outputs, state)
        return wide, replace(result, params=params, raw_params=raw, state=state)

    def _widened(self, model: Any, columns: Columns) -> Any:
        """The model of all columns, from that of the columns that occur."""
        wide = self._make_model(model.loss, columns.total, model.n_outputs, model.dtype)
        if model.centre is None:
            return wide
        return wide.with_centre(columns.spread(model.centre, 1, np.zeros(columns.total)))

    def _fitted(
        self,
        model: Any,
        columns: Columns | None,
        classes: NDArray[Any] | None,
        encoding: Encoding | None,
        params: NDArray[np.floating],
    ) -> dict[str, Any]:
        """The attributes of a fit that ended with such parameters."""
        other = copy(self)
        if classes is not None:
            other.classes_ = classes
        other.encoder_ = None if encoding is None else encoding.encoder
        if columns is not None:
            wide = self._widened(model, columns)
            params, model = columns.spread(params, model.n_outputs, wide.initial()), wide
        other._keep(model, params)
        return {name: value for name, value in vars(other).items() if name.endswith("_")}

    def _take(self, model: Model, result: FitResult) -> None:
        self._keep(model, result.params)
        self.n_iter_ = len(result.history)
        self.loss_ = result.history[-1].loss
        self.history_ = History(record.as_dict() for record in result.history)
        self.plan_ = result.plan

    def _partitions(
        self, client: Any, X: Any, y: Any, sample_weight: Any, reset: bool, encoded: bool
    ) -> tuple[list[Partition], bool]:
        """The data in aligned partitions, and whether it came in one piece."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        if is_dask(X):
            meta = None if encoded else meta_of(X)
            if meta is not None:
                validate_data(self, X=meta, skip_check_array=True, reset=reset)
            several = not self._classification
            return partitions_of(X, y, sample_weight, multi_output=several), False
        y = in_memory(y, "y", client)
        sample_weight = in_memory(sample_weight, "sample_weight", client)
        return [self._local_partition(X, y, sample_weight, reset, encoded)], True

    def _check_found(self, summary: DataSummary, reset: bool) -> None:
        """Take in, or compare, columns as they are once partitions have been computed."""
        found: Any = np.empty((1, summary.n_features))
        if summary.columns is not None:
            import pandas as pd

            found = pd.DataFrame(columns=list(summary.columns))
        validate_data(self, X=found, skip_check_array=True, reset=reset)

    def _local_partition(
        self, X: Any, y: Any, sample_weight: Any, reset: bool, encoded: bool
    ) -> Partition:
        """Data of this process; what its values hold is looked at with the partition."""
        if not encoded:
            X = self._plain(X, reset, all_finite=False)  # values are looked at later
        if not X.dtype.isnative or (X.dtype.kind == "f" and X.dtype.itemsize not in (4, 8)):
            X = X.astype(np.float64)
        if self._classification:
            y = column_or_1d(y, warn=True)
        else:
            y = check_array(
                y, ensure_2d=False, ensure_min_samples=0, ensure_min_features=0, dtype=None,
                ensure_all_finite=False, input_name="y",
            )  # fmt: skip
            y = y.astype(np.float64) if y.dtype == object else y
        check_consistent_length(X, y)
        if sample_weight is not None:
            if isinstance(sample_weight, Real):
                sample_weight = np.full(X.shape[0], sample_weight)
            sample_weight = check_array(
                sample_weight, ensure_2d=False, ensure_min_samples=0, allow_nd=True,
                dtype=np.float64, ensure_all_finite=False, input_name="sample_weight",
            )  # fmt: skip
            if len(sample_weight) != X.shape[0]:
                raise ValueError(
                    f"sample_weight has {len(sample_weight):,} rows, and X has {X.shape[0]:,}"
                )
        return Partition(X, y, sample_weight)

    def _plain(self, X: Any, reset: bool, all_finite: bool) -> Any:
        """Local data that is read as it is: an array or CSR of numbers."""
        frame = X if is_frame(X) else None
        if frame is not None:
            check_names(frame)
        defect = defect_of_structure(X)
        if defect is not None:
            raise ValueError(defect.replace("{place}", ""))
        if hasattr(X, "to_scipy_sparse"):
            X = as_rows(X)
        try:
            X = validate_data(
                self, X, accept_sparse="csr", dtype="numeric", ensure_all_finite=all_finite,
                reset=reset,
            )  # fmt: skip
        except (TypeError, ValueError):
            if frame is not None:
                check_columns(frame)  # says which columns, if that is what is wrong
            raise
        if frame is not None and X.dtype.kind not in "biuf":
            check_columns(frame)
        return X

    def _class_weight(
        self, summary: DataSummary, classes: NDArray[Any]
    ) -> tuple[float, ...] | None:
        """The factor of each class; None for a regression."""
        return None

    def _describe(
        self, loss: Loss, summary: DataSummary, classes: NDArray[Any] | None, start: Start
    ) -> tuple[Model, TargetEncoding, NDArray[Any] | None]:
        """The model and the encoding of targets that the data asks for."""
        if self._classification:
            classes = self._known_classes(summary, classes)
            factors = self._class_weight(summary, classes)
            loss = loss.for_classes(len(classes))
            n_outputs = loss.n_outputs(len(classes))
        else:
            factors, n_outputs = None, summary.n_outputs
        weight_sum = summary.weight_sum
        if factors is not None:
            at = np.searchsorted(classes, summary.classes)  # type: ignore[arg-type]
            weight_sum = float((np.asarray(factors)[at] * summary.class_weights).sum())
            if weight_sum <= 0:
                raise ValueError("class_weight leaves no row any weight")
        targets = TargetEncoding(
            loss=loss,
            classes=classes,
            class_weight=factors,
            scale=summary.total / weight_sum,
        )
        dtype = summary.dtype if start.params is None else start.params.dtype
        model = self._make_model(loss, summary.n_features, n_outputs, dtype)
        if start.params is not None and start.params.size != model.layout.size:
            raise ValueError(
                f"the fit cannot start from the last one: that has {start.params.size} "
                f"parameters, and this data and fit_intercept={self.fit_intercept} ask for "
                f"{model.layout.size}; train a clone, or with warm_start=False"
            )
        return model, targets, classes

    def _known_classes(self, summary: DataSummary, classes: NDArray[Any] | None) -> NDArray[Any]:
        if classes is None:
            classes = summary.classes
        unknown = summary.classes[~np.isin(summary.classes, classes)]
        if len(unknown):
            raise ValueError(
                f"y holds labels {unknown.tolist()}, which are not in `classes`: "
                f"{np.asarray(classes).tolist()}"
            )
        if len(classes) < 2:
            raise ValueError(
                f"The number of classes has to be greater than one; got 1 class: {classes.tolist()}"
            )
        return classes

    def _job(
        self,
        fit: str,
        mode: Mode,
        optimizer: Optimizer | None,
        model: Any,
        targets: TargetEncoding,
        summary: DataSummary,
        start: Start,
        max_iter: int,
        tol: float | None,
        may_be_wide: bool,
    ) -> Job:
        """Everything the trainer is told."""
        # The scale makes weights sum to the rows, so this is one over their sum.
        alpha = targets.scale / summary.total if self.alpha == "auto" else float(self.alpha)
        share = l1_ratio(self)
        if self.penalty is None:
            alpha = 0.0
        wide = may_be_wide and is_wide(summary, alpha, alpha * share)
        batch_size = choose_batch_size(self, summary, wide)
        batch = batch_rows(batch_size, summary.total)
        bold = wide and optimizer is None and self.learning_rate == "auto"
        if bold:
            optimizer, schedule = wide_steps(summary)
        else:
            optimizer = optimizer or auto_optimizer()
            steady = self._classification or mode.deterministic
            few = steady and batch >= summary.total
            schedule = choose_schedule(self, optimizer, summary.reach(self._loss()) or 1.0, few)
        if self.average:
            optimizer = Averaged(optimizer, start=(int(self.average) - 1) // batch)
        n, centre = model.layout.size, start.centre
        spread = None if bold else summary.spread
        if spread is not None:  # steps by keys would bring a centre to columns that they leave out
            centred = self.fit_intercept and not touches_little(summary, n, batch)
            centre = spread.centre(model.dtype) if centred else None
        model = model.with_centre(centre)
        params = start.params_for(model)
        if start.params is None and self.fit_intercept and not self._classification:
            views = model.layout.views(params)
            views["intercept"][:] = self._loss().start(np.array(summary.target_mean))
        state = start.state_for(optimizer, model)
        if state is None:
            state = np.zeros((optimizer.state_rows, n), model.dtype)
            optimizer.initialize(state)
            if bold:
                calm_intercept(summary, model.layout, state)
            elif spread is not None:
                set_units(optimizer, spread.scale(centre, model.dtype), model.layout, state)
        passes = choose_full_batch(
            self, self._loss(), summary, tol, alpha * share, alpha * (1.0 - share), wide
        )
        steps = passes is None or takes_steps(self, self._loss(), mode, tol)
        full_batch, finish = (None, passes) if steps else (passes, None)
        stopping = StoppingRule(
            max_iter, tol, self.n_iter_no_change, self.early_stopping, finish is not None
        )
        return Job(
            fit=fit,
            model=model,
            targets=targets,
            optimizer=optimizer,
            schedule=schedule,
            l1=alpha * share,
            l2=alpha * (1.0 - share),
            mode=mode,
            stopping=stopping,
            params=params,
            state=state,
            version=start.version,
            epochs_before=start.epochs,
            batch_size=batch_size,
            n_replicas=choose_replicas(self, mode, summary, batch, n, wide and full_batch is None),
            n_shards=self.n_shards,
            rebalance=self.rebalance,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            shuffle=self.shuffle,
            validation_fraction=self.validation_fraction if self.early_stopping else 0.0,
            timeout=float(self.timeout),
            full_batch=full_batch,
            finish=finish,
            name=type(self).__name__,
        )

    # A client holds a connection and an event loop: it is shared, never copied.
    def __sklearn_clone__(self) -> Self:
        from sklearn.base import clone

        parameters = {
            name: value if name == "client" else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        new = type(self)(**parameters)
        if hasattr(self, "_skl_callbacks"):  # shared likewise, as scikit-learn's own clone does
            new._skl_callbacks = self._skl_callbacks
        if hasattr(self, "_metadata_request"):
            new._metadata_request = deepcopy(self._metadata_request)
        return new

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if not isinstance(state.get("client", ""), str):
            state["client"] = None
        return state

    def _repr_html_inner(self) -> str:
        return self._with_report(super()._repr_html_inner())

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] = self._with_report(bundle["text/html"])
        return bundle

    def _with_report(self, diagram: str) -> str:
        """scikit-learn's diagram, and below it how the fit went, to be opened."""
        report: FitReport | None = getattr(self, "fit_report_", None)
        if report is None:
            return diagram
        summary = f"<summary>{escape(report.summary)}</summary>"
        return f"{diagram}<details>{summary}{report._repr_html_()}</details>"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _first_failure(*ends: Callable[[], None]) -> BaseException | None:
    """Call all of them, whatever one of them raises; what the first one did."""
    failed: BaseException | None = None
    for end in ends:
        try:
            end()
        except BaseException as error:
            failed = failed or error
    return failed


def _as_rows(X: Any, number: int) -> Any:
    return as_rows(X)
