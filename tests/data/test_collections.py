"""Partitions of every kind of collection, and collections made of them again."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from distributed import Client, Future

from dps.data.collections.parts import Parts, rows_of, take

ROWS = np.arange(21.0).reshape(7, 3)
FRAME = pd.DataFrame(ROWS, columns=list("abc"))
KINDS: dict[str, tuple[Any, list[int] | None]] = {
    "array": (da.from_array(ROWS, chunks=(3, 2)), [3, 3, 1]),
    "vector": (da.from_array(ROWS[:, 0], chunks=3), [3, 3, 1]),
    "of unknown lengths": (dd.from_pandas(FRAME, chunksize=3).to_dask_array(), None),
    "frame": (dd.from_pandas(FRAME, chunksize=3), None),
    "series": (dd.from_pandas(FRAME, chunksize=3)["a"], None),
    "list": ([dask.delayed(ROWS[at : at + 3]) for at in (0, 3, 6)], None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cut_is_put_together_again(kind: str) -> None:
    values, lengths = KINDS[kind]
    parts = Parts(values)
    assert (len(parts), parts.lengths) == (3, lengths)
    assert parts.computed(rows_of, None) == [3, 3, 1]
    halved = parts.like(parts.map(take, [np.arange(1)] * 3))
    assert type(halved) is type(values)
    found = dask.compute(*halved) if parts.is_list else [halved.compute()]
    wanted = dask.compute(*values) if parts.is_list else [values.compute()]
    wanted = np.concatenate([np.asarray(each) for each in wanted])[[0, 3, 6]]
    np.testing.assert_array_equal(np.concatenate([np.asarray(each) for each in found]), wanted)


@pytest.mark.parametrize("kind", ["vector", "frame", "series"])
def test_what_lies_on_a_cluster_stays_there(kind: str, client: Client) -> None:
    tasks = Parts(client.persist(KINDS[kind][0])).tasks
    assert [isinstance(task, Future) for task in tasks] == [True] * 3


@pytest.mark.parametrize("make", [np.asarray, pd.DataFrame, scipy.sparse.coo_array, list])
def test_some_rows_of_any_partition_are_those_rows(make: Any) -> None:
    some = take(make(ROWS), np.array([4, 1]))
    some = some.toarray() if hasattr(some, "toarray") else some
    np.testing.assert_array_equal(np.asarray(some), ROWS[[4, 1]])
    assert rows_of(make(ROWS)) == 7
