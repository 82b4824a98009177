"""In each container, bad data gets an error that says what is wrong, in which partition and row."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import pairs
from distributed import Client, LocalCluster

import dps
from dps.data.collections.partitions import is_frame

CUTS = (0, 10, 10, 17, 40)
LENGTHS = (10, 0, 7, 23)
ROWS, NAMES = 40, ["a", "b", "c"]
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = (X[:, 0] > 0).astype(int)
ROW, PLACE = 12, "in partition 2 .*row 2"


def parts(values: Any, cuts: Any = CUTS) -> list[Any]:
    return [values[a:b] for a, b in itertools.pairwise(cuts)]


def frame_of(values: Any) -> Any:
    if values.ndim == 1:
        return pd.Series(values, dtype=values.dtype)
    return pd.DataFrame(values, columns=NAMES)


def array(values: Any, cuts: Any = CUTS) -> Any:
    return da.from_array(values, chunks=(tuple(np.diff(cuts)), *values.shape[1:]))


def unknown(values: Any, cuts: Any = CUTS) -> Any:
    blocks = array(values, cuts)
    chunks = ((np.nan,) * (len(cuts) - 1), *blocks.chunks[1:])
    return blocks.map_blocks(lambda block: block, chunks=chunks)


def csr(values: Any, cuts: Any = CUTS) -> Any:
    blocks = unknown(values, cuts)
    return blocks if values.ndim == 1 else blocks.map_blocks(scipy.sparse.csr_array)


def frame(values: Any, cuts: Any = CUTS) -> Any:
    pieces = [frame_of(part) for part in parts(values, cuts)]
    return dd.from_delayed([dask.delayed(piece) for piece in pieces], meta=pieces[0][:0])


def delayed(values: Any, cuts: Any = CUTS) -> Any:
    return [dask.delayed(part) for part in parts(values, cuts)]


def delayed_frames(values: Any, cuts: Any = CUTS) -> Any:
    return [dask.delayed(frame_of(part)) for part in parts(values, cuts)]


MAKERS: list[Callable[..., Any]] = [array, unknown, csr, frame, delayed, delayed_frames]
every_container = pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
FRAMES = [frame, delayed_frames]
every_frame = pytest.mark.parametrize("make", FRAMES, ids=lambda make: make.__name__)


def fails(message: str, *data: Any, kind: Any = ValueError, model: Any = None) -> None:
    model = model or dps.LinearClassifier()
    with pytest.raises(kind, match=message):
        model.fit(*data)
    assert not hasattr(model, "coef_")


def with_bad(values: Any, bad: float) -> Any:
    values = values.astype(float)
    values[(ROW, 1) if values.ndim == 2 else ROW] = bad
    return values


@pytest.fixture(scope="module")
def client() -> Any:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@every_container
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(make: Any, bad: float) -> None:
    name = "NaN" if np.isnan(bad) else "infinity"
    if not np.isnan(bad) or make not in (array, unknown, frame):  # which are encoded
        fails(f"X in partition 2 holds {name}.* in row 2", make(with_bad(X, bad)), make(Y))
    regressor = dps.LinearRegressor()
    fails(f"y in partition 2 holds {name}.* in row 2", make(X), make(with_bad(Y, bad)),
          model=regressor)  # fmt: skip
    several = with_bad(X, bad)
    fails(f"y in partition 2 holds {name}.* in row 2", array(X), array(several), model=regressor)
    weight = make(with_bad(Y, bad))
    fails(f"sample_weight in partition 2 holds {name}.* in row 2", make(X), make(Y), weight)


@every_container
def test_weights_that_are_negative_or_all_zero(make: Any) -> None:
    fails(f"sample_weight {PLACE}", make(X), make(Y), make(with_bad(Y * 0, -1.0)))
    fails("sample_weight sums to zero", make(X), make(Y), make(Y * 0.0))


@every_container
def test_lengths_that_differ_are_found_before_any_update(make: Any) -> None:
    other = (0, 10, 12, 17, 40)
    message = "has 2 rows|partition 1 of (y|sample_weight) has 2 rows"
    fails(message, make(X), make(Y, other))
    fails(message, make(X), make(Y), make(Y + 1, other))
    fails("y has 3 partitions, X has 4: (rechunk|repartition) y", make(X), make(Y, (0, 10, 17, 40)))


@every_container
def test_nothing_to_learn_from(make: Any) -> None:
    fails("number of classes has to be greater than one; got 1 class", make(X), make(Y * 0))
    fails("0 sample", make(X[:0], (0, 0, 0)), make(Y[:0], (0, 0, 0)))


@every_container
def test_labels_in_several_columns_or_missing(make: Any) -> None:
    several = make(np.stack([Y, Y, Y + 1], axis=1))
    message = "y in partition 0 holds 2, in row .*: of several columns of y each says of one label"
    fails(message, make(X), several)
    fails("y must be a vector|y in partition 0 has 3 dimensions", array(X), array(X[:, :, None]),
          model=dps.LinearRegressor())  # fmt: skip
    labels = np.where(Y > 0, "yes", "no").astype(object)
    labels[ROW] = None
    fails("y in partition 2 holds a missing label, in row 2", make(X), make(labels))
    mixed = np.where(Y > 0, np.array("yes", object), np.array(True, object))
    if not is_frame(make(X)):  # of which Dask makes strings
        fails(r"partition 0 holds labels of several types \(bool, str\)", make(X), make(mixed))
    fails("a regression wants numbers", make(X), make(np.array(["x"] * ROWS)),
          model=dps.LinearRegressor())  # fmt: skip


def test_partitions_that_hold_no_tables_of_numbers() -> None:
    for odd, message in (
        (X.astype(str).astype(object) + "m", "X in partition 2 has dtype object, which is no num"),
        (X[:, 0], "X in partition 2 has 1 dimensions, two are wanted"),
        (X[:, :2], "partition 2 has 2, partition 0 has 3"),
    ):
        mixed = delayed(X)
        mixed[2] = dask.delayed(odd[10:17])
        fails(message, mixed, delayed(Y))
    fails("X has dtype <U32, which is no number", array(X.astype(str)), array(Y))
    named = pd.DataFrame(X, columns=NAMES).assign(c="x")
    fails(r"columns \['c'\] of X hold no numbers", [dask.delayed(named)], [dask.delayed(Y)])


@every_frame
def test_columns_that_are_missing_extra_or_in_another_order(make: Any) -> None:
    local = pd.DataFrame(X, columns=NAMES)
    data, labels = make(X), delayed(Y)
    model = dps.LinearClassifier(max_iter=2, tol=None).fit(data, labels)
    assert model.feature_names_in_.tolist() == NAMES
    for other in (local[["a", "b"]], local.assign(d=0.0), local[["b", "a", "c"]]):
        pieces = [dask.delayed(other)]
        with pytest.raises(ValueError, match="feature names should"):
            model.predict(dd.from_delayed(pieces, meta=other[:0]))
        with pytest.raises(
            ValueError, match=r"features, but 3 are|columns of X in partition 0 are"
        ):
            dask.compute(*model.predict(pieces))
        with pytest.raises(ValueError, match="feature names should"):
            model.partial_fit(pieces, [dask.delayed(Y)])
    swapped = [dask.delayed(local[["b", "a", "c"]][17:])]
    message = r"partition 3 has \['b', 'a', 'c'\], partition 0 has \['a', 'b', 'c'\]"
    pieces = data.to_delayed() if make is frame else data
    fails(message, [*pieces[:3], *swapped], labels)
    lying = dd.from_delayed(
        [*swapped] * 4, meta=local[:0], verify_meta=False
    )  # announces another order
    fails("feature names should match", lying, [dask.delayed(Y[17:])] * 4)


def test_columns_of_one_name() -> None:
    twice = pd.DataFrame(X, columns=["a", "b", "a"])
    message = r"several columns named \['a'\]: give each a name of its own"
    fails(message, twice, Y)
    fails(message, dd.from_delayed([dask.delayed(twice)], meta=twice[:0]), array(Y, (0, ROWS)))
    fails(message, [dask.delayed(twice)], [dask.delayed(Y)])


def test_containers_that_cannot_be_aligned() -> None:
    data, labels = delayed(X), delayed(Y)
    fails(r"X is one Delayed or Future: give a list.*X=\[X\]", data[0], labels[0], kind=TypeError)
    fails("partition 1 of X is a ndarray", [data[0], X], labels[:2], kind=TypeError)
    fails("y is a ndarray and X is a Dask collection of unknown", data, Y, kind=TypeError)
    fails("y comes in partitions and X does not", X, labels, kind=TypeError)
    fails("sample_weight is a str: give a vector", array(X), array(Y), "balanced", kind=TypeError)
    fails("must be a dask array or dataframe here.*got Bag", dask.bag.from_sequence([1]), labels,
          kind=TypeError)  # fmt: skip
    fails("y must be an array or a series, got Bag", array(X), dask.bag.from_sequence(Y.tolist()),
          kind=TypeError)  # fmt: skip


@pairs(make=MAKERS, name=["X", "y", "sample_weight"], clustered=[False, True])
def test_a_partition_that_raises_is_named(
    make: Any, name: str, clustered: bool, client: Client
) -> None:
    def broken(values: Any) -> Any:
        raise FileNotFoundError("part.7.parquet")

    data = {"X": make(X), "y": make(Y), "sample_weight": make(Y + 1.0)}
    pieces = list(data[name] if isinstance(data[name], list) else np.ravel(data[name].to_delayed()))
    pieces[2] = dask.delayed(broken)(pieces[2])
    data[name] = pieces
    model = dps.LinearClassifier(client=client if clustered else None)
    with pytest.raises(FileNotFoundError, match=r"part\.7") as caught:
        model.fit(*data.values())
    (note,) = caught.value.__notes__
    assert "broken-" in note
    if clustered:
        assert note.startswith(f"partition 2 of {name}, 'broken-")
