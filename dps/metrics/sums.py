"""Sums over the partitions of predictions, targets and weights, made where the partitions lie.

They are aligned partition by partition, as for a fit. It knows nothing of models, and of no metric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.cluster.choice import client_of
from dps.data.alignment import partitions_of
from dps.data.collections import one_graph
from dps.data.partitions import Partition, as_pandas, is_dask
from dps.data.results import results_of
from dps.data.sealed import sealed
from dps.data.targets import as_targets

_FAN = 8  # results that one task merges
_TIMEOUT = 60.0


def of_partitions(
    function: Callable[..., Any], y: Any, predicted: Any, weight: Any, client: Any
) -> list[Any]:
    """What a function makes of each partition.

    Parameters
    ----------
    function : callable
        Of the arrays of predictions, targets and weights (float64) of a partition.
    y, predicted, weight
        As the metrics take them.
    client : Client, cluster, address or None
        Where to compute; None leaves it to Dask.
    """
    return _computed(_tasks(function, y, predicted, weight), client)


def merged(
    function: Callable[..., Any],
    merge: Callable[[Sequence[Any]], Any],
    y: Any,
    predicted: Any,
    weight: Any,
    client: Any,
) -> Any:
    """The same, put together by `merge` of some at a time, on the workers too."""
    tasks = _tasks(function, y, predicted, weight)
    if callable(tasks):
        return merge(tasks())
    import dask

    join = dask.delayed(sealed(merge))
    while True:
        tasks = [join(tasks[at : at + _FAN]) for at in range(0, len(tasks), _FAN)]
        if len(tasks) == 1:
            return _computed(tasks, client)[0]


def _tasks(function: Callable[..., Any], y: Any, predicted: Any, weight: Any) -> Any:
    """A Delayed a partition; or what computes the only one, of local data."""
    y, predicted, weight = as_pandas(y), as_pandas(predicted), as_pandas(weight)
    if not any(map(is_dask, (y, predicted, weight))):
        return lambda: [_look(Partition(predicted, y, weight), function, None)]
    if not is_dask(predicted):
        raise TypeError(
            f"y_true or sample_weight is of Dask, and y_pred is of the type "
            f"{type(predicted).__name__}: predict the Dask collection, or compute() the others"
        )
    import dask

    look = dask.delayed(sealed(_look_at))
    parts = partitions_of(*one_graph(predicted, y, weight), multi_output=True)
    return [
        look(part.X, part.y, part.weight, function=sealed(function), number=number)
        for number, part in enumerate(parts)
    ]


def _computed(tasks: Any, client: Any) -> list[Any]:
    if callable(tasks):
        return list(tasks())
    with client_of(client, _TIMEOUT) as found:
        return results_of(tasks, found)


def _look_at(predicted: Any, y: Any, weight: Any, function: Any, number: int) -> Any:
    return _look(Partition(predicted, y, weight), function, number)


def _look(part: Partition, function: Any, number: int | None) -> Any:
    """What a function makes of one partition."""
    predicted, y = as_targets(part.X), as_targets(part.y)
    weights = np.ones(len(y))
    if part.weight is not None:
        weights = as_targets(part.weight).astype(np.float64)
    if not len(predicted) == len(y) == len(weights):
        place = "" if number is None else f" in partition {number}"
        of_weights = "" if part.weight is None else f", sample_weight has {len(weights)}"
        raise ValueError(
            f"y{place} has {len(y)} rows, its predictions have {len(predicted)}{of_weights}: they "
            "must be cut at the same rows"
        )
    return function(predicted, y, weights)


def same_shape(predicted: NDArray[Any], y: NDArray[Any]) -> None:
    """Raise unless there is a prediction for each target.

    Raises
    ------
    ValueError
    """
    if predicted.shape != y.shape:
        raise ValueError(f"y has shape {y.shape}, and its predictions {predicted.shape}")
