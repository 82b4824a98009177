"""Dask dataframes, partition by partition: looked at in one pass, or turned into blocks of CSR.

Knows nothing of what is looked for, or of how blocks are made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dps.data.alignment import parts_of
from dps.data.results import results_of
from dps.data.sealed import identity, sealed

__all__ = ["csr_blocks", "of_each_partition"]


def of_each_partition(frame: Any, function: Callable[..., Any]) -> list[Any]:
    """What a function says of each partition of a dask dataframe; computed at once.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame
    function : callable
        From a pandas dataframe to something small.
    """
    import dask

    look = dask.delayed(sealed(function))
    return results_of([look(part) for part in parts_of(frame)], None)


def csr_blocks(frame: Any, function: Callable[..., Any], n_columns: int, dtype: Any) -> Any:
    """A dask dataframe as a lazy dask array of CSR blocks, of unknown lengths.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame
    function : callable
        From a pandas dataframe, and the number of its partition, to a CSR matrix.
    n_columns : int
    dtype : dtype
    """
    import dask
    import dask.array as da
    import scipy.sparse

    meta = scipy.sparse.csr_matrix((0, n_columns), dtype=dtype)
    shared = dask.delayed(sealed(identity, function), pure=True)()  # once in the graph
    encode = dask.delayed(sealed(encode_partition), pure=True)
    blocks = [
        da.from_delayed(encode(shared, part, number), (np.nan, n_columns), dtype, meta=meta)
        for number, part in enumerate(parts_of(frame))
    ]
    return da.concatenate(blocks, allow_unknown_chunksizes=True)


def encode_partition(function: Callable[[Any, int], Any], part: Any, number: int) -> Any:
    """The task that encodes."""
    return function(part, number)
