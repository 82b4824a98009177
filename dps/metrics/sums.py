"""Sums over the partitions of predictions, targets and weights, computed on their workers.

The arguments are aligned partition by partition, as for a fit.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
from sklearn import metrics

from dps.cluster.choice import client_of
from dps.data.collections.alignment import in_memory, partitions_of
from dps.data.collections.partitions import as_pandas, is_dask
from dps.data.collections.parts import one_graph
from dps.data.collections.results import results_of
from dps.data.collections.sealed import sealed
from dps.data.feed.targets import as_targets
from dps.metrics.checks import Check, check_numbers

if TYPE_CHECKING:
    from dps._typing import ClientLike, VectorLike

_FAN = 8  # results that one task merges
F = TypeVar("F", bound=Callable[..., Any])

#: Metrics of Dask data by name; `Metric` adds them.
METRICS: dict[str, Callable[..., Any]] = {}


class Metric:
    """Decorates a metric of Dask data; for local data scikit-learn's metric of that name is called.

    adapt: converts local targets, predictions and options for scikit-learn.
    """

    def __init__(self, adapt: Callable[..., Any] | None = None) -> None:
        self._adapt = adapt

    def __call__(self, metric: F) -> F:
        """Return the metric for both kinds of data."""
        signature = inspect.signature(metric)

        @functools.wraps(metric)
        def either(*args: Any, **kwargs: object) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            (first, y), (second, predicted) = [*given.items()][:2]
            y, predicted = as_pandas(y), as_pandas(predicted)
            options = {name: given[name] for name in given if name not in (first, second)}
            weight = options["sample_weight"] = as_pandas(options.get("sample_weight"))
            # For example the result of np.unique on a dask array.
            if is_dask(options.get("labels")):
                with client_of(options.get("client")) as client:
                    (options["labels"],) = in_memory(client, labels=options["labels"])
            if any(map(is_dask, (y, predicted, weight))):
                return metric(y, predicted, **options)
            from dps._sklearn import metric_of

            client = options.pop("client", None)
            if (theirs := metric_of(metric.__name__, options)) is None:
                y, predicted, options["sample_weight"] = map(_as_dask, (y, predicted, weight))
                return metric(y, predicted, client=client, **options)
            if self._adapt is not None:
                y, predicted, options = self._adapt(y, predicted, options)
            return theirs(y, predicted, **options)

        METRICS[metric.__name__] = either
        return cast("F", either)


_DOC = """{summary}

Parameters
----------
{arguments}
{options}
    As for :func:`sklearn.metrics.{name}`.
client : distributed.Client, cluster or address, optional
    Client that computes. The default is Dask's scheduler.

Returns
-------
object
    The result of :func:`sklearn.metrics.{name}`.

Raises
------
ValueError
    `y_true` and `y_pred` are cut at different rows, or do not suit the metric.

Examples
--------
>>> import dask.array as da
>>> from dps.metrics import {name}
{example}
"""


def like_sklearn(
    name: str, compute: Callable[..., Any], summary: str, arguments: str, example: str
) -> Callable[..., Any]:
    """Return scikit-learn's metric of a name for Dask data too, with its parameters and `client`.

    compute: computes it, from `y_true`, `y_pred`, weights, a client and further options.
    arguments: describes `y_true` and `y_pred`.
    """
    parameters = [*inspect.signature(getattr(metrics, name)).parameters.values()]
    client = inspect.Parameter("client", inspect.Parameter.KEYWORD_ONLY, default=None)
    options = ", ".join(each.name for each in parameters[2:])

    def metric(
        y_true: VectorLike,
        y_pred: VectorLike,
        *,
        sample_weight: VectorLike | None = None,
        client: ClientLike | None = None,
        **options: Any,
    ) -> Any:
        return compute(y_true, y_pred, sample_weight, client, **options)

    metric.__name__ = metric.__qualname__ = name
    metric.__module__ = "dps.metrics"  # where doctest and pickle look for it
    metric.__doc__ = _DOC.format(
        summary=summary, arguments=arguments, name=name, options=options, example=example
    )
    metric.__signature__ = inspect.Signature([*parameters, client])  # type: ignore[attr-defined]
    return Metric()(metric)


def _as_dask(values: VectorLike | None) -> Any:
    """Return local values as a dask array of one partition."""
    import dask.array as da

    return None if values is None else da.from_array(np.asarray(values), chunks=-1)


def of_partitions(
    function: Callable[..., Any],
    check: Check,
    y: VectorLike,
    predicted: VectorLike,
    weight: VectorLike | None,
    client: ClientLike | None,
) -> list[Any]:
    """Apply a function to each partition that has rows.

    function: takes arrays of predictions, targets and weights (float64) of a partition.
    check: raises if predictions and targets do not suit the metric.
    y, predicted, weight: as for metrics; predictions are Dask's.
    client: where to compute; None leaves it to Dask.
    Raises ValueError: there are no rows.
    """
    with client_of(client) as found:
        looked = results_of(_tasks(function, check, y, predicted, weight), found)
    return _some(looked)


def merged(
    function: Callable[..., Any],
    merge: Callable[[Sequence[Any]], Any],
    check: Check,
    y: VectorLike,
    predicted: VectorLike,
    weight: VectorLike | None,
    client: ClientLike | None,
) -> Any:
    """Apply a function to each partition, and merge results in a tree on the workers."""
    import dask

    tasks = _tasks(function, check, y, predicted, weight)
    join = dask.delayed(sealed(_join, merge))
    while True:
        tasks = [join(tasks[at : at + _FAN]) for at in range(0, len(tasks), _FAN)]
        if len(tasks) == 1:
            with client_of(client) as found:
                return _some(results_of(tasks, found))[0]


class _Looked(NamedTuple):
    value: Any
    weighs: bool  # whether a row has weight


def _some(looked: Sequence[_Looked | None]) -> list[Any]:
    found = [each for each in looked if each is not None]
    if not found:
        raise ValueError(
            "Found array with 0 sample(s): y_true has no rows, a minimum of 1 is required."
        )
    if not any(each.weighs for each in found):  # as in scikit-learn
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return [each.value for each in found]


def _join(merge: Callable[[Sequence[Any]], Any], parts: Sequence[_Looked | None]) -> _Looked | None:
    found = [part for part in parts if part is not None]
    if not found:
        return None
    return _Looked(merge([each.value for each in found]), any(each.weighs for each in found))


def _tasks(
    function: Callable[..., Any],
    check: Check,
    y: VectorLike,
    predicted: VectorLike,
    weight: VectorLike | None,
) -> Any:
    """Return a Delayed per partition."""
    if not is_dask(predicted):
        raise TypeError(
            f"y_true or sample_weight is of Dask, and y_pred is of the type "
            f"{type(predicted).__name__}: predict the Dask collection, or compute() the others"
        )
    import dask

    look = dask.delayed(sealed(_look, function, check))
    parts = partitions_of(
        *one_graph(predicted, y, weight), multi_output=True, names=("y_pred", "y_true")
    )
    return [look(number, part.X, part.y, part.weight) for number, part in enumerate(parts)]


def _look(
    function: Callable[..., Any],
    check: Check,
    number: int,
    predicted: Any,
    y: Any,
    weight: VectorLike | None,
) -> _Looked | None:
    """Apply a function to one partition; None for an empty one, which may have any dtype."""
    place = f" in partition {number}"
    predicted, y = as_targets(predicted), as_targets(y)
    weights = np.ones(len(y))
    if weight is not None:
        weights = as_targets(weight).astype(np.float64)
    if not len(predicted) == len(y) == len(weights):
        of_weights = "" if weight is None else f", sample_weight has {len(weights)}"
        raise ValueError(
            f"y_true{place} has {len(y)} rows, y_pred has {len(predicted)}{of_weights}: they must "
            "be cut at the same rows"
        )
    if not len(y):
        return None
    check_numbers(weights, "sample_weight", place)
    check(predicted, y, place)
    return _Looked(function(predicted, y, weights), bool(weights.any()))


def same_shape(predicted: np.ndarray, y: np.ndarray) -> None:
    """Raise unless there is a prediction for each target."""
    if predicted.shape != y.shape:
        raise ValueError(f"y_true has shape {y.shape}, and y_pred {predicted.shape}")
