"""One fit, from the user's arguments to the attributes of the fitted estimator.

It is the same for all estimators: inputs, targets, cluster, training, attributes. The estimator
supplies everything that depends on its model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from dps._sklearn import FRAMES
from dps._warned import warn
from dps.cluster.choice import cluster_for
from dps.data.collections.alignment import in_memory
from dps.data.collections.partitions import Partition, is_dask, is_frame, is_list
from dps.data.collections.parts import one_graph
from dps.data.feed.blocks import as_rows
from dps.data.feed.targets import TargetEncoding
from dps.data.survey.labels import Labels, check_kinds
from dps.data.survey.rows import (
    DataSummary,
    GapsError,
    check_size,
    check_weight,
    combine,
    inspect_kept,
    warn_unless_repeated,
)  # fmt: skip
from dps.estimators.fit.callbacks import FitCallbacks
from dps.estimators.fit.encoding import Framed, as_frame, encoding_for, select
from dps.estimators.fit.inputs import check_found, partitions_for
from dps.estimators.fit.interrupts import Interrupts
from dps.estimators.fit.loading import Loading
from dps.estimators.fit.multilabel import check_columns_of_labels, labels_of_columns
from dps.estimators.fit.resume import Resumption
from dps.estimators.fit.survey import Given, Request, Survey
from dps.estimators.fit.validation import ValidationData, check_targets, survey_validation
from dps.estimators.served.publish import Publisher
from dps.losses import Loss
from dps.monitor.advice import constant_is_as_good
from dps.parameter_server import ParameterServer
from dps.preprocessing.columns import take_logarithms
from dps.preprocessing.features import Number
from dps.training.epochs.records import EpochRecord, History
from dps.training.job import FitResult, Job
from dps.training.report import report_of
from dps.training.run.trainer import train
from dps.training.state import Snapshot, TrainState

if TYPE_CHECKING:
    from dps.cluster.base import Cluster
    from dps.estimators.base.trainable import Trainable
    from dps.scores.validation import Score


#: Data with fewer values does not pay for a cluster's messages.
_SMALL = 1 << 22


def fit(
    client: Any,
    estimator: Trainable,
    given: Given,
    *,
    resumption: Resumption,
    server: ParameterServer | None = None,
) -> None:
    """Fit an estimator, and set its fitted attributes.

    resumption: the checkpoint to continue from and the checkpoints to write, if any.
    server: publishes the model during training.
    """
    # All errors in parameters are found before any data moves.
    request = Request.of(estimator, given, resumption.seed)
    request.strength = resumption.strength
    watching = FitCallbacks(estimator, given.X, given.y, given.weight, request.max_iter)
    score = request.score()
    estimator._check(request)
    request.encoding = given.encoded or encoding_for(estimator, given.X, given.start is not None)
    data = _partitioned(request, client, given)
    small = data.is_small and server is None and not (estimator._is_own or estimator.checkpoint)
    cluster = cluster_for(client, request.fit, request.options, small)
    interrupts = Interrupts()
    publish = cluster.publish if cluster.watched else None
    loading = Loading(type(estimator).__name__, estimator.verbose, request.fit, publish)
    try:
        survey = _surveyed(request, data, cluster, given, loading)
        job = resumption.job(_planned(survey), survey)
        if score is not None:
            job = _scored(job, score, survey, bool(data.validating))
        publisher, fitted = None, functools.partial(_fitted, survey, job)
        if server is not None:
            restored = functools.partial(_restored, survey, job)
            publisher = Publisher(server, estimator, job, restored, fitted)
        loading.end()
        job = watching.watch(job, fitted, publisher)
        result = train(job, survey.summary, cluster, interrupts.hold)
    except BaseException as error:
        with interrupts:
            loading.end(error)
            failed = _first_failure(watching.close, cluster.close)
        if failed is not None:
            error.add_note(f"and then, while the fit was cleared away: {failed!r}")
        raise
    with interrupts:
        failed = _first_failure(watching.close, cluster.close)
        _store(survey, job, result)
    if publisher is not None:
        publisher.end(result.reported)
    for after in (result.error, failed, KeyboardInterrupt() if interrupts.held else None):
        if after is not None:
            raise after
    watching.end()
    if (no_better := estimator.fit_report_.no_better) is not None:
        warn(constant_is_as_good(*no_better), UserWarning, stacklevel=4 + FRAMES)
    if not estimator._ends_as_planned or job.full_batch is not None:
        _warn_unless_converged(result, request.tol, job.stopping.max_iter)


def _store(survey: Survey, job: Job, result: FitResult) -> None:
    """Set the fitted attributes."""
    estimator = survey.estimator
    found = _fitted(survey, job, result.reported, result.history)
    vars(estimator).pop("alpha_path_", None)  # of an earlier fit that searched for alpha
    for name, value in found.items():
        setattr(estimator, name, value)
    model, kept = estimator._restore_columns(survey, job, result.kept)
    result = replace(result, kept=kept)
    estimator.plan_ = replace(result.plan, why=survey.cluster.why)
    estimator._carry = survey.carry(job, model, result)
    report = report_of(type(estimator).__name__, job, result)
    loss = math.nan if report.validation_loss is None else report.validation_loss
    estimator.fit_report_ = replace(report, no_better=survey.no_better(loss))


def _scored(job: Job, score: Score, survey: Survey, validating: bool) -> Job:
    """Return a job whose epochs are scored."""
    if not (job.stopping.validate or validating or survey.partial):
        raise ValueError(
            f"scoring={survey.estimator.scoring!r} needs rows for validation: give X_val and "
            "y_val to fit, or early_stopping=True"
        )
    scored = score._about(job.targets, survey.n_outputs)
    return replace(job, stopping=replace(job.stopping, score=scored, tol=survey.tol))


class _Data(NamedTuple):
    """The arguments of a fit in aligned partitions; nothing is computed yet."""

    X: Any  # as given, or as the frame that is encoded
    partitions: list[Partition]
    validating: list[Partition]
    whole: bool  # whether the data is not partitioned
    # A function that changes each partition when it is loaded.
    prepare: Callable[[Any, int], Any] | None

    @property
    def is_small(self) -> bool:
        """True if all data is local, and a cluster's messages would take longer than training."""
        values = 0
        for part in (*self.partitions, *self.validating):
            if is_dask(part.X):
                return False
            values += part.X.nnz if hasattr(part.X, "nnz") else math.prod(part.X.shape)
        return values < _SMALL


def _partitioned(request: Request, client: Any, given: Given) -> _Data:
    """Partition the data: names, kinds and known lengths are checked, values are not."""
    estimator, encoding = request.estimator, request.encoding
    X, y, sample_weight, validation = _of_one_graph(client, given)
    prepare, as_given = None, X
    if encoding is not None and given.encoded is None:
        X = select(estimator, encoding.encoder, X, given.reset and not encoding.fitted)
        if is_dask(X):
            prepare = encoding.prepare(X)
        else:
            X = encoding.encode(as_frame(X))
    partitions, whole = partitions_for(
        estimator, X, y, sample_weight, classification=estimator._classification,
        reset=given.reset, encoded=encoding is not None,
    )  # fmt: skip
    validating: list[Partition] = []
    if validation is not None:
        validating = validation.partitions(estimator, as_given, encoding, len(partitions))
    if whole and estimator._leaves_out_columns(request):
        from dps.data.columns import occurring

        rows, request.columns = occurring(partitions[0].X)
        partitions = [replace(partitions[0], X=rows)]
        if request.columns is not None:
            validating = [replace(part, X=request.columns.of(part.X)) for part in validating]
    return _Data(X, partitions, validating, whole, prepare)


def _of_one_graph(client: Any, given: Given) -> tuple[Any, Any, Any, ValidationData | None]:
    """Return the data to be computed once: immediately for a local X, else in one graph."""
    X, y, weight, validation = given.X, given.y, given.weight, given.validation
    held: list[Any] = [None] * 3
    if validation is not None:
        held = [validation.X, validation.y, validation.weight]
    if is_dask(X):
        X, y, weight, *held = one_graph(X, y, weight, *held)
    else:
        y, weight, *held = in_memory(
            client, y=y, sample_weight=weight,
            X_val=held[0], y_val=held[1], sample_weight_val=held[2],
        )  # fmt: skip
    if held[0] is not None and not is_dask(held[0]):
        held[1:] = in_memory(client, y_val=held[1], sample_weight_val=held[2])
    return X, y, weight, None if validation is None else ValidationData(*held)


def _surveyed(
    request: Request, data: _Data, cluster: Cluster, given: Given, loading: Loading
) -> Survey:
    """Load, encode and inspect the data on its workers."""
    estimator = request.estimator
    most = None if estimator.n_replicas == "auto" else int(estimator.n_replicas)
    cluster.load(
        data.partitions, data.prepare, request.options.cache, most, data.validating, loading
    )
    trained = cluster.n_trained
    if request.encoding is not None:
        loading.phase = "encoding"
        request.encoding.complete(cluster, trained)
    loading.phase = "looking at the rows"
    _leave_out_columns(request, data, cluster)
    try:
        summary = _looked_at(request, cluster, trained, data.whole)
    except GapsError as error:
        arrays = getattr(estimator, "_arrays", None)
        if arrays or is_list(data.X) or estimator.encoder != "auto" or request.start is not None:
            raise ValueError(*error.args) from None
        # Numbers are missing: the loaded data is encoded where it is.
        X = data.partitions[0].X if data.whole else data.X
        request.encoding = encoding_for(estimator, X, False, gaps=True)
        assert request.encoding is not None
        X = select(estimator, request.encoding.encoder, X, given.reset)
        names = list(X.columns) if is_frame(X) else None
        cluster.replace(Framed(request.encoding.prepare(X), names))
        request.encoding.complete(cluster, trained)
        summary = _looked_at(request, cluster, trained, data.whole)
    if is_list(data.X) or (is_dask(data.X) and summary.columns is not None):
        check_found(estimator, summary, given.reset and is_list(data.X))
    seen: list[DataSummary] = []
    if data.validating:
        summary, seen = survey_validation(
            cluster, summary, request.loss, estimator._classification,
            len(cluster.holders) - trained, len(data.validating) == 1,
        )  # fmt: skip
    cluster.replace(_as_rows, summary.unreadable)
    targets, n_outputs = _describe(estimator, request.loss, summary, given.classes)
    if data.validating:
        check_targets(seen, targets)
    labels = None
    if seen and targets.classes is not None and not targets.multilabel:
        labels = Labels.merge([part.labels for part in seen])
    survey = Survey(**vars(request), cluster=cluster, summary=summary, targets=targets,
                    n_outputs=n_outputs, given=labels, loading=loading)  # fmt: skip
    if request.encoding is not None and request.encoding.ours and not request.partial:
        _choose_logarithms(survey)
    return survey


def _choose_logarithms(survey: Survey) -> None:
    """Replace numbers by their logarithms if held-out rows favour that."""
    columns = survey.estimator._useful_logarithms(survey)
    if not len(columns):
        return
    assert survey.encoding is not None
    encoder, trained = survey.encoding.encoder, columns
    if survey.columns is not None:
        columns = survey.columns.numbers[columns]
    names = [each.name for each in encoder._layout.features if isinstance(each, Number)]
    chosen = np.isin(encoder._layout.number_columns, columns)
    encoder._take_logarithms([name for name, one in zip(names, chosen, strict=True) if one])
    survey.loading.phase, cluster = "looking at the rows", survey.cluster
    cluster.replace(functools.partial(take_logarithms, columns=trained))
    found = _looked_at(survey, cluster, cluster.n_trained, whole=False)
    survey.summary = replace(
        survey.summary, moments=found.moments, spread=found.spread, square=found.square
    )


def _leave_out_columns(request: Request, data: _Data, cluster: Cluster) -> None:
    """Leave out columns without values on the workers, if there are many."""
    from dps.data.columns import LONG, look_at_columns, occurring_among

    if request.encoding is not None:
        total = request.encoding.encoder._layout.width
    else:
        total = data.X.shape[1] if is_dask(data.X) and not is_list(data.X) else 0
    if request.columns is None and total >= LONG and request.estimator._leaves_out_columns(request):
        looks = cluster.map(look_at_columns, range(cluster.n_trained), total=total)
        request.columns = occurring_among(looks, total)
        if request.columns is not None:
            cluster.replace(request.columns)


def _looked_at(request: Request, cluster: Cluster, trained: int, whole: bool) -> DataSummary:
    """Return a summary of the training partitions."""
    estimator = request.estimator
    found = cluster.map(
        inspect_kept, range(trained), opened=False, classification=estimator._classification,
        loss=request.loss, wanted=estimator._inspection(request),
    )  # fmt: skip
    warn_unless_repeated(found)
    summary = combine(found, classification=estimator._classification, whole=whole)
    labels = len(summary.labels.classes)
    if request.alike is None or labels or len(request.alike) != 1 + summary.n_outputs:
        return summary
    return summary.after_alike(*np.split(request.alike, [1]))


def _planned(survey: Survey) -> Job:
    """Return the estimator's plan; squares of a regression's targets must fit its dtype."""
    regression = not survey.estimator._classification
    if regression:
        check_size(survey.summary, np.float64)
    job: Job = survey.estimator._plan(survey)
    if regression:
        check_size(survey.summary, job.model.dtype)
    return job


def _warn_unless_converged(result: FitResult, tol: float | None, max_iter: int) -> None:
    if tol is not None and result.history[-1].last and not result.history[-1].converged:
        warn(
            f"the loss still improved by more than tol={tol:g} after max_iter={max_iter} "
            "epochs: raise max_iter, or tol",
            ConvergenceWarning,
            stacklevel=5 + FRAMES,
        )


def _fitted(
    survey: Survey, job: Job, trained: Snapshot, history: Sequence[EpochRecord]
) -> dict[str, Any]:
    """Return the attributes of a fit that ended with these parameters after these epochs.

    Training can continue from the parameters; after the end of a fit, from the optimizer's state as
    well.
    """
    estimator, encoding = survey.estimator, survey.encoding
    found = {"encoder_": None if encoding is None else encoding.encoder, **survey.attributes}
    if estimator._classification:
        found |= {"classes_": job.targets.classes, "multilabel_": job.targets.multilabel}
    if survey.start is None and not estimator._is_own:
        standards = survey.summary.standards if encoding is None else None
        found["_means"] = None if standards is None else standards[0]
    model, trained = estimator._restore_columns(survey, job, trained)
    # A table continues with room for more rows.
    ids = trained.ids if model.layout.table is not None else None
    carry = TrainState(trained.params, model, ids=ids)
    model, params = _compact(model, trained)
    last = history[-1]
    monitored = "validation_loss" if job.stopping.validate else "loss"
    losses = [getattr(epoch, monitored) for epoch in history]
    return {
        **found,
        **estimator._attributes(model, params),
        "n_iter_": len(history),
        "loss_": last.loss,
        "best_loss_": min((loss for loss in losses if not math.isnan(loss)), default=math.nan),
        "history_": History(epoch.as_dict(last.kept) for epoch in history),
        "_carry": replace(carry, epochs=job.epochs_before + last.epoch),
    }


def _restored(survey: Survey, job: Job, trained: Snapshot) -> tuple[Any, NDArray[np.floating]]:
    """Return the model of all columns and its parameters."""
    return _compact(*survey.estimator._restore_columns(survey, job, trained))


def _compact(model: Any, trained: Snapshot) -> tuple[Any, NDArray[np.floating]]:
    """Return a model and its parameters; a table keeps only the rows in use."""
    if model.layout.table is not None:
        return model.compact(trained.params, trained.ids)
    return model, trained.params


def _describe(
    estimator: Trainable, loss: Loss, summary: DataSummary, classes: np.ndarray | None
) -> tuple[TargetEncoding, int]:
    """Return the encoding of targets for the data, and the number of raw outputs."""
    factors, n_outputs, weight_sum = None, summary.n_outputs, summary.targets.weight
    if estimator._classification and summary.n_outputs > 1:
        classes, loss = labels_of_columns(estimator, loss, n_outputs, classes)
    elif estimator._classification:
        check_columns_of_labels(estimator, classes, several=False)
        classes = _known_classes(summary, classes)
        factors = estimator._class_factors(summary, classes)
        loss = loss.for_classes(len(classes))
        n_outputs = loss.n_outputs(len(classes))
        if factors is not None:
            at = np.searchsorted(classes, summary.labels.classes)
            with np.errstate(over="ignore"):
                weight_sum = float((np.asarray(factors)[at] * summary.labels.weights).sum())
            if weight_sum <= 0:
                raise ValueError(
                    f"class_weight={estimator.class_weight!r} gives all rows the weight 0"
                )
            check_weight(weight_sum / summary.total, "class_weight, times sample_weight,")
    scale = summary.total / weight_sum
    return TargetEncoding(loss, classes, factors, scale), n_outputs


def _known_classes(summary: DataSummary, classes: np.ndarray | None) -> np.ndarray:
    if classes is None:
        classes = summary.labels.classes
    before = "the fit before, or `classes`,"
    check_kinds([("y", summary.labels.classes), (before, np.asarray(classes))], f"y and {before}")
    unknown = summary.labels.classes[~np.isin(summary.labels.classes, classes)]
    if len(unknown):
        raise ValueError(
            f"y holds labels {unknown.tolist()}, which are neither in `classes` nor in the fit "
            "before: "
            f"{np.asarray(classes).tolist()}"
        )
    if len(classes) < 2:
        raise ValueError(
            f"The number of classes has to be greater than one; got 1 class: {classes.tolist()}"
        )
    return classes


def _first_failure(*ends: Callable[[], None]) -> BaseException | None:
    """Call all functions, even after an exception; return the first exception."""
    failed: BaseException | None = None
    for end in ends:
        try:
            end()
        except BaseException as error:
            failed = failed or error
    return failed


def _as_rows(X: Any, number: int) -> Any:
    return as_rows(X)
