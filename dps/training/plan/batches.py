"""Rows of a batch, and whether steps go by keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dps.data.survey.rows import DataSummary

#: Largest number of rows of a data set that makes one batch.
_FEW_ROWS = 256
#: Approximate number of updates per epoch of larger ones, and the largest batch.
_UPDATES_PER_EPOCH = 512
_LARGEST_BATCH = 4096
#: Elements of a whole vector that are updated in the time of one element by its key.
_COST_OF_A_KEY = 8
#: In place of a number of replicas: one per worker that holds rows.
FEWEST = "fewest"


def batch_rows(batch_size: int | str, rows: int) -> int:
    """Return the rows of one update; for "auto" they depend on the number of rows only.

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
    """True if a batch touches so few parameters of a model that steps should go by keys.

    The model has equally many parameters for each column.
    """
    share = summary.elements / summary.total * batch_size / (summary.n_features + 1)
    return summary.sparse and share * (1 + (_COST_OF_A_KEY - 1) / key_width) <= 1
