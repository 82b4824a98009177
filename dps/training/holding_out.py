"""Whether both parts of the rows count: those to train on, and those kept for validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps.cluster.base import Cluster
from dps.data.batches import held_out_rows
from dps.data.inspection import DataSummary
from dps.data.targets import TargetEncoding

if TYPE_CHECKING:
    from dps.training.job import Job


def check_held_out(job: Job, summary: DataSummary, cluster: Cluster) -> None:
    """Raise unless some row that counts is trained on, and another one is kept for validation.

    Parameters
    ----------
    job : Job
    summary : DataSummary
        Of the partitions as the cluster has them.
    cluster : Cluster

    Raises
    ------
    ValueError
    """
    if not job.validation_fraction:
        return
    factors = job.targets.class_weight or ()
    counting: list[NDArray[np.uint8] | None] = [None] * len(summary.rows)
    if summary.weightless or 0.0 in factors:  # else every row counts
        counting = cluster.map(rows_that_count, targets=job.targets, dtype=str(job.model.dtype))
    held_out = trained_on = 0
    for number, (rows, bits) in enumerate(zip(summary.rows, counting, strict=True)):
        held = held_out_rows(job.seed, number, rows, job.validation_fraction)
        counts = np.ones(rows, bool) if bits is None else np.unpackbits(bits, count=rows) > 0
        held_out += int(np.count_nonzero(counts & held))
        trained_on += int(np.count_nonzero(counts & ~held))
        if held_out and trained_on:
            return
    if not held_out:
        raise ValueError(
            f"no row that counts fell into the validation set (of {summary.total} rows): "
            "raise validation_fraction, or give more rows weight"
        )
    raise ValueError(
        f"no row that counts is left to train on (of {summary.total} rows), since all are kept "
        "for validation: lower validation_fraction, or give more rows weight"
    )


def rows_that_count(
    X: Any, y: Any, weight: Any, *, targets: TargetEncoding, dtype: str
) -> NDArray[np.uint8] | None:
    """A bit for each row of a partition, whether it has weight; None where all have."""
    weights = targets.encode(y, weight, dtype)[1]
    return None if weights is None else np.packbits(weights > 0)
