"""The choice of held-out rows, and checks that they and the training rows have weight.

Each row is held out with the same probability. For rare labels a fixed share of their rows is held
out: their rows are spread over partitions, and a single partition might hold out none or all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps.cluster.base import Cluster
from dps.data.feed.held_out import HeldOut
from dps.data.feed.targets import TargetEncoding, as_targets
from dps.data.survey.rows import DataSummary

if TYPE_CHECKING:
    from dps.training.job import Job


#: Largest number of rows of a rare label. For others a draw per row is near enough to the share.
_FEW_ROWS = 1000
#: Largest number of rows of rare labels that are listed, the rarest labels first.
_LISTED = 1 << 17


def hold_out(job: Job, summary: DataSummary, cluster: Cluster) -> HeldOut:
    """Choose the held-out rows; rows with weight are held out, and others are trained on.

    summary: of the partitions as the cluster holds them.
    """
    first = len(summary.rows) if summary.validation else None
    if not job.validation_fraction:
        return HeldOut(job.seed, 0.0, first=first)
    held_out = HeldOut(job.seed, job.validation_fraction, _of_few(job, summary, cluster), first)
    _check(job, summary, cluster, held_out)
    return held_out


def _of_few(
    job: Job, summary: DataSummary, cluster: Cluster
) -> dict[int, tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Return the rows of rare labels in each partition, and whether each is held out."""
    order = np.argsort(summary.labels.rows, kind="stable")
    rows = summary.labels.rows[order]
    few = np.sort(summary.labels.classes[order[(rows <= _FEW_ROWS) & (np.cumsum(rows) <= _LISTED)]])
    if not len(few):
        return {}
    found = cluster.map(rows_of_labels, range(len(summary.rows)), labels=few)
    partitions = np.repeat(np.arange(len(found)), [len(at) for _, at in found])
    codes, at = (np.concatenate(each) for each in zip(*found, strict=True))
    # Sorted by label and a random number: the first ones are held out.
    drawn = np.random.default_rng((job.seed, 1)).random(len(at))
    order, counts = np.lexsort((drawn, codes)), np.bincount(codes, minlength=len(few))
    place = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = np.zeros(len(at), bool)
    kept[order] = place < np.repeat(np.round(job.validation_fraction * counts), counts)
    known = ((int(number), partitions == number) for number in np.unique(partitions))
    return {number: (at[here], kept[here]) for number, here in known}


def rows_of_labels(
    X: Any, y: Any, weight: Any, *, labels: np.ndarray
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return rows of a partition with certain labels: the numbers of labels and of rows."""
    found = as_targets(y).ravel()
    rows = np.flatnonzero(np.isin(found, labels))
    return np.searchsorted(labels, found[rows]), rows


def _check(job: Job, summary: DataSummary, cluster: Cluster, kept: HeldOut) -> None:
    factors = job.targets.class_weight or ()
    counting: list[NDArray[np.uint8] | None] = [None] * len(summary.rows)
    if summary.weightless or 0.0 in factors:  # else every row has weight
        counting = cluster.map(rows_that_count, targets=job.targets, dtype=str(job.model.dtype))
    held_out = trained_on = 0
    for number, (rows, bits) in enumerate(zip(summary.rows, counting, strict=True)):
        if bits is None:
            n, n_held = rows, kept.count(number, 0, rows)
        else:
            counts = np.flatnonzero(np.unpackbits(bits, count=rows))
            held = kept.rows(number, rows)
            n, n_held = len(counts), 0 if held is None else int(held[counts].sum())
        held_out, trained_on = held_out + n_held, trained_on + n - n_held
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
    """Return a bit per row of a partition that says if it has weight; None if all have."""
    weights = targets.encode(y, weight, dtype)[1]
    return None if weights is None else np.packbits(weights > 0)
