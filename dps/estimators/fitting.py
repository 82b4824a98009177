"""One fit, from what a user brings to the attributes of a fitted estimator.

The same for all estimators: inputs, targets, cluster, training, attributes. What is particular to a
kind of model it asks of its family. It knows no mode, optimizer or loss by name.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from dps.cluster.choice import cluster_for
from dps.data.blocks import as_rows
from dps.data.inspection import (
    DataSummary,
    GapsError,
    check_size,
    check_weight,
    combine,
    inspect_partition,
)  # fmt: skip
from dps.data.partitions import Partition, is_dask, is_list
from dps.data.targets import TargetEncoding
from dps.estimators.callbacks import FRAMES
from dps.estimators.encoding import encoding_for, framed, select
from dps.estimators.family import Ask, Family, Recipe
from dps.estimators.inputs import check_found, partitions_for
from dps.estimators.interrupts import Interrupts
from dps.estimators.multilabel import check_columns_of_labels, labels_of_columns
from dps.estimators.publishing import Publisher
from dps.estimators.resuming import Resumption
from dps.estimators.validation import ValidationData, check_targets, look_at_validation
from dps.estimators.viewers import Viewers
from dps.losses import Loss
from dps.modes import get_mode
from dps.parameter_server import ParameterServer
from dps.training.history import EpochRecord, History
from dps.training.job import Execution, FitResult, Job, Trained, new_fit_id
from dps.training.position import Beginning, Position
from dps.training.report import report_of
from dps.training.state import TrainState
from dps.training.trainer import train

__all__ = ["fit_on"]


def fit_on(client: Any, estimator: Any, X: Any, *args: Any, **options: Any) -> None:
    """Fit, see `fit`; numbers of which some are missing are encoded then."""
    try:
        fit(client, estimator, X, *args, **options)
        return
    except GapsError as error:
        arrays = getattr(estimator, "_arrays", None)
        if arrays or is_list(X) or estimator.encoder != "auto" or options["start"]:
            raise ValueError(*error.args) from None
    fit(client, estimator, X, *args, gaps=True, **options)


def fit(
    client: Any,
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    server: ParameterServer | None = None,
    start: TrainState | None,
    partial: bool = False,
    classes: NDArray[Any] | None = None,
    reset: bool = True,
    validation: ValidationData | None = None,
    resume: bool = False,
    gaps: bool = False,
) -> None:
    """Fit an estimator, and set its fitted attributes.

    Parameters
    ----------
    client : Client or None
    estimator : DistributedEstimator
    X, y, sample_weight
        As users give them.
    server : ParameterServer, optional
        Where the model is to be read while it learns.
    start : TrainState or None
        Where training goes on from.
    partial : bool
        Whether it is one epoch, of many.
    classes : array, optional
        All labels that will ever come.
    reset : bool
        Whether the columns are those of a first fit.
    validation : ValidationData, optional
    resume : bool
        Whether it goes on from the newest checkpoint, if there is one.
    gaps : bool
        Whether numbers of a dataframe are known to be missing.

    Raises
    ------
    GapsError
        They are, and it was not known.
    """
    resumption = Resumption(estimator, resume, start, partial)
    family: Family = estimator._family()
    max_iter, tol = (1, None) if partial else (family.max_iter, estimator.tol)
    viewers = Viewers(estimator, X, y, sample_weight, max_iter)
    # Everything that can be wrong with parameters is found before any data moves.
    seed = resumption.seed
    ask = Ask(get_mode(estimator.mode), start, max_iter, tol, seed, partial)
    classification, loss = estimator._classification, estimator._loss()
    score = None
    if estimator.scoring != "loss":
        from dps.scores.gathered import get_score  # and with it scikit-learn's metrics

        score = get_score(estimator.scoring, loss)
    family.check(ask)
    encoding = encoding_for(estimator, X, start is not None, gaps)
    prepare, given = None, X
    if encoding is not None:
        X = framed(select(estimator, encoding.encoder, X, reset and not encoding.fitted))
        if is_dask(X):
            prepare = encoding.prepare(X)
        else:
            X = encoding.encode(X)
    partitions, whole = partitions_for(
        estimator, client, X, y, sample_weight, classification=classification, reset=reset,
        encoded=encoding is not None,
    )  # fmt: skip
    validating: list[Partition] = []
    if validation is not None:
        validating = validation.partitions(estimator, client, given, encoding, len(partitions))
    if whole:
        partitions = [family.drop_columns(ask, partitions[0])]
        validating = [replace(part, X=family.select_columns(part.X)) for part in validating]
    fit = new_fit_id()
    cluster = cluster_for(client, fit, estimator.timeout)
    interrupts = Interrupts()
    try:
        most = None if estimator.n_replicas == "auto" else int(estimator.n_replicas)
        cluster.load(partitions, prepare, estimator.cache, most, validating)
        trained = cluster.n_trained
        if encoding is not None:
            encoding.complete(cluster, trained)
        found = cluster.map(
            inspect_partition,
            range(trained),
            classification=classification,
            loss=loss,
            wanted=family.inspection(ask, encoding),
        )
        summary = combine(found, classification=classification, whole=whole)
        if is_list(X) or (is_dask(X) and summary.columns is not None):
            check_found(estimator, summary, reset and is_list(X))
        if validating:
            n_validating = len(cluster.holders) - trained
            summary, seen = look_at_validation(
                cluster, summary, loss, classification, n_validating, len(validating) == 1
            )
        cluster.replace(_as_rows, summary.unreadable)
        targets, n_outputs = _describe(estimator, loss, summary, classes)
        if validating:
            check_targets(seen, targets)
        if not classification:
            check_size(summary, np.float64)
        family.try_out(ask, cluster, summary)
        recipe = family.recipe(ask, summary, targets, n_outputs, encoding)
        if not classification:
            check_size(summary, recipe.model.dtype)
        recipe = resumption.recipe(recipe, summary, targets, encoding)
        targets = family.scored(targets, recipe.model)
        if score is not None:
            if not (recipe.stopping.validate or validating or partial):
                raise ValueError(
                    f"scoring={estimator.scoring!r} needs rows for validation: give X_val and "
                    "y_val to fit, or early_stopping=True"
                )
            recipe = recipe.scored(score.about(targets, n_outputs))
        fixed = {
            "classes_": targets.classes,
            "encoder_": None if encoding is None else encoding.encoder,
            "multilabel_": targets.multilabel,
        }
        if not classification:
            del fixed["classes_"], fixed["multilabel_"]
        if start is None and not estimator._is_own:
            standards = summary.standards if encoding is None else None
            fixed["_means"] = None if standards is None else standards[0]
        job = _job(estimator, fit, ask, targets, recipe, holds_out=not validating)
        job = resumption.job(job)
        publisher = None
        fitted = functools.partial(_fitted, family, recipe, fixed, job.epochs_before)
        if server is not None:
            restored = functools.partial(_restored, family, recipe)
            publisher = Publisher(server, estimator, family, recipe, restored, fitted)
        job = viewers.watch(job, fitted, publisher)
        result = train(job, summary, cluster, interrupts.hold)
    except BaseException as error:
        with interrupts:
            failed = _first_failure(viewers.close, cluster.close)
        if failed is not None:
            error.add_note(f"and then, while the fit was cleared away: {failed!r}")
        raise
    with interrupts:
        failed = _first_failure(viewers.close, cluster.close)
        for name, value in fitted(result.reported, result.history).items():
            setattr(estimator, name, value)
        model = family.restore_model(recipe.model)
        if model is not recipe.model:
            kept = result.kept._replace(values=family.restore_columns(recipe, result.kept.values))
            result = replace(result, kept=kept)
        estimator.plan_ = result.plan
        estimator._carry = TrainState.after(start, job, model, result)
        estimator.fit_report_ = report_of(type(estimator).__name__, job, result)
    if publisher is not None:
        publisher.end(result.reported)
    for after in (result.error, failed, KeyboardInterrupt() if interrupts.held else None):
        if after is not None:
            raise after
    viewers.end()
    if not recipe.ends:
        _warn_unless_converged(result, tol, max_iter)


def _warn_unless_converged(result: FitResult, tol: float | None, max_iter: int) -> None:
    if tol is not None and result.history[-1].last and not result.history[-1].converged:
        warnings.warn(
            f"the loss still improved by more than tol={tol:g} after max_iter={max_iter} "
            "epochs: raise max_iter, or tol",
            ConvergenceWarning,
            stacklevel=6 + FRAMES,
        )


def _fitted(
    family: Family,
    recipe: Recipe,
    fixed: dict[str, Any],
    before: int,
    trained: Trained,
    history: Sequence[EpochRecord],
) -> dict[str, Any]:
    """The attributes of a fit that ended with such parameters, after such epochs.

    It goes on from the parameters; the fit itself, when it has ended, from the optimizer's state.
    """
    model, params = _restored(family, recipe, trained)
    carry, last = TrainState(params, model), history[-1]
    if recipe.model.layout.table is not None:  # which goes on with room for more rows
        carry = TrainState(trained.params, family.restore_model(recipe.model), ids=trained.ids)
    monitored = "validation_loss" if recipe.stopping.validate else "loss"
    losses = [getattr(epoch, monitored) for epoch in history]
    return {
        **fixed,
        **family.attributes(model, params),
        "n_iter_": len(history),
        "loss_": last.loss,
        "best_loss_": min((loss for loss in losses if not math.isnan(loss)), default=math.nan),
        "history_": History(epoch.as_dict() for epoch in history),
        "_carry": replace(carry, epochs=before + last.epoch),
    }


def _restored(family: Family, recipe: Recipe, trained: Trained) -> tuple[Any, NDArray[np.floating]]:
    """The model of all data, and its parameters."""
    model, wide = (
        family.restore_model(recipe.model),
        family.restore_columns(recipe, trained.params[None])[0],
    )
    if recipe.model.layout.table is not None:
        model, wide = model.compact(wide, trained.ids)
    return model, wide


def _describe(
    estimator: Any, loss: Loss, summary: DataSummary, classes: NDArray[Any] | None
) -> tuple[TargetEncoding, int]:
    """The encoding of targets that the data asks for, and how many raw outputs there are."""
    factors, n_outputs, weight_sum = None, summary.n_outputs, summary.weight_sum
    if estimator._classification and summary.n_outputs > 1:
        classes, loss = labels_of_columns(estimator, loss, n_outputs, classes)
    elif estimator._classification:
        check_columns_of_labels(estimator, classes, several=False)
        classes = _known_classes(summary, classes)
        factors = estimator._class_factors(summary, classes)
        loss = loss.for_classes(len(classes))
        n_outputs = loss.n_outputs(len(classes))
        if factors is not None:
            at = np.searchsorted(classes, summary.classes)
            with np.errstate(over="ignore"):
                weight_sum = float((np.asarray(factors)[at] * summary.class_weights).sum())
            if weight_sum <= 0:
                raise ValueError(
                    f"class_weight={estimator.class_weight!r} gives all rows the weight 0"
                )
            check_weight(weight_sum / summary.total, "class_weight, times sample_weight,")
    scale = summary.total / weight_sum
    return TargetEncoding(loss, classes, factors, scale), n_outputs


def _known_classes(summary: DataSummary, classes: NDArray[Any] | None) -> NDArray[Any]:
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
    estimator: Any, fit: str, ask: Ask, targets: TargetEncoding, recipe: Recipe, holds_out: bool
) -> Job:
    """Everything the trainer is told."""
    start = ask.start
    holds_out = holds_out and recipe.stopping.validate
    version, ids = (0, None) if start is None else (start.version, start.ids)
    execution = Execution(
        recipe.n_replicas, estimator.n_shards, estimator.rebalance, float(estimator.timeout),
        estimator.on_data_loss == "drop", estimator.max_losses,
    )  # fmt: skip
    return Job(
        fit=fit,
        model=recipe.model,
        targets=targets,
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
        l1=recipe.l1,
        l2=recipe.l2,
        mode=ask.mode,
        stopping=recipe.stopping,
        position=Position(Beginning(recipe.params, recipe.state, version, ids)),
        epochs_before=0 if start is None else start.epochs,
        batch_size=recipe.batch_size,
        execution=execution,
        seed=ask.seed,
        shuffle=estimator.shuffle,
        validation_fraction=estimator.validation_fraction if holds_out else 0.0,
        full_batch=recipe.full_batch,
        finish=recipe.finish,
        name=type(estimator).__name__,
    )


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
