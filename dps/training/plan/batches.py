"""Rows of a batch, and whether a batch touches so little of a model that keys pay."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dps.data.survey.rows import DataSummary

#: Up to so many rows, a batch is all of them.
_FEW_ROWS = 256
#: Otherwise an epoch has about so many updates, of batches up to a size.
_UPDATES_PER_EPOCH = 512
_LARGEST_BATCH = 4096
#: Elements of a whole vector that are updated in the time that one is by its key.
_COST_OF_A_KEY = 8
#: Instead of a number of replicas: one for each worker that holds rows.
FEWEST = "fewest"


def batch_rows(batch_size: int | str, rows: int) -> int:
    """Rows of one update: a number as it is, and a choice that depends on rows only for "auto".

    Examples
    --------
    >>> batch_rows("auto", 100), batch_rows(64, 100)
    (100, 64)
    """
    if not isinstance(batch_size, str):
        return min(int(batch_size), rows)
    if rows <= _FEW_ROWS:
        return rows
    return max(_FEW_ROWS, min(_LARGEST_BATCH, rows // _UPDATES_PER_EPOCH))


def touches_little(summary: DataSummary, size: int, batch_size: int, key_width: int = 1) -> bool:
    """True if a batch touches so few of a model's parameters that keys of them pay.

    The model has equally many parameters for each column.
    """
    share = summary.elements / summary.total * batch_size / (summary.n_features + 1)
    return summary.sparse and share * (1 + (_COST_OF_A_KEY - 1) / key_width) <= 1
