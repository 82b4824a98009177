"""Values that other libraries read wrongly: masked, infinite, mixed, stored where no row is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from configure import configure
from distributed import Client
from own_models import Line

from dps import (
    FMClassifier,
    FMRegressor,
    LinearClassifier,
    LinearRegressor,
    MLPClassifier,
    MLPRegressor,
    ModelRegressor,
    metrics,
)
from dps.model_selection import cross_val_score

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
Y = (X[:, 0] > 0).astype(int)
NUMBERS = X @ [1.0, 2.0, 3.0]


def lists(values: Any, cuts: int = 4) -> list[Any]:
    return [dask.delayed(part) for part in np.array_split(values, cuts)]


# Infinity.


class Clipped(Line):
    """Its outputs are finite, whatever goes in."""

    def raw(self, params: Any, batch: Any) -> Any:
        return np.tanh(np.clip(batch.X, -3, 3) @ params["coef"])


FITTED: dict[str, Any] = {
    "linear": lambda: LinearClassifier().fit(X, Y),
    "network": lambda: MLPClassifier(max_iter=2, random_state=0).fit(X, Y),
    "machine": lambda: FMClassifier(max_iter=2, random_state=0).fit(X, Y),
    "regression": lambda: MLPRegressor(max_iter=2, random_state=0).fit(X, NUMBERS),
    "sparse machine": lambda: FMRegressor(max_iter=2, random_state=0).fit(X, NUMBERS),
    "own": lambda: ModelRegressor(Clipped, max_iter=2, tol=None).fit(X, NUMBERS),
}
CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "NumPy": lambda Z: Z,
    "CSR": scipy.sparse.csr_array,
    "Dask": lambda Z: da.from_array(Z, chunks=(2, 3)),
    "frame": lambda Z: dd.from_pandas(pd.DataFrame(Z), npartitions=2),
    "list": lambda Z: lists(Z, 2),
    "Dask's CSR": lambda Z: da.from_array(Z, chunks=(2, 3)).map_blocks(scipy.sparse.csr_array),
}


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("name", FITTED)
def test_infinity_is_not_predicted_from(name: str, kind: str) -> None:
    model = FITTED[name]()
    given = X[:4].copy()
    given[2, 1] = np.inf
    given = CONTAINERS[kind](given)
    for method in ("predict", "predict_proba"):
        if not hasattr(model, method):
            continue
        with pytest.raises(ValueError, match=r"(?i)infinity"):
            dask.compute(getattr(model, method)(given))


# Labels.


def text(labels: Any) -> Any:
    return labels.astype(str)


ODD: dict[str, tuple[Any, str]] = {
    "texts": (text, "partition 0 holds numbers, partition 1 holds strings"),
    "objects": (lambda y: text(y).astype(object), "numbers, partition 1 holds strings"),
    "bytes": (lambda y: y.astype("S"), "numbers, partition 1 holds bytes"),
    "dates": (lambda y: pd.to_datetime(y).to_numpy(), "numbers, partition 1 holds dates"),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", ["lists", "array", "series"])
def test_labels_of_two_types_are_refused(name: str, kind: str) -> None:
    odd, message = ODD[name]
    parts = np.array_split(Y, 3)
    parts[1] = odd(parts[1])
    y: Any = [dask.delayed(part) for part in parts]
    if kind == "array":
        y = da.concatenate([da.from_delayed(p, (np.nan,), int) for p in y],
                           allow_unknown_chunksizes=True)  # fmt: skip
    elif kind == "series":
        made = [dask.delayed(pd.Series)(part) for part in parts]
        y = dd.from_delayed(made, meta=pd.Series([], dtype=int), verify_meta=False)
    with pytest.raises(ValueError, match=f"the labels of y differ in their type: .*{message}"):
        LinearClassifier().fit(lists(X, 3), y)


def test_labels_of_one_type_may_have_several_dtypes() -> None:
    a, b, c = np.array_split(Y, 3)
    y = [dask.delayed(part) for part in (a, b.astype(bool), c.astype(np.float32))]
    assert LinearClassifier().fit(lists(X, 3), y).score(X, Y) > 0.95


def test_labels_for_validation_and_later_ones_are_of_that_type() -> None:
    with pytest.raises(ValueError, match="y holds numbers, y_val holds strings"):
        LinearClassifier().fit(X, Y, X_val=X, y_val=text(Y))
    with pytest.raises(ValueError, match="differ in their type"):
        LinearClassifier().partial_fit(X, Y, classes=["0", "1"])


# Masks.


@pytest.fixture(params=[None, "client"])
def where(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("client") if request.param else None


def masked(values: Any, at: Any) -> Any:
    made = values.copy()
    made[at] = -9999
    return np.ma.masked_equal(made, -9999)


def cut(values: Any) -> Any:
    return da.from_array(values, chunks=(50, *values.shape[1:]))


@pytest.mark.parametrize(
    ("cache", "where"), [("memory", "client"), ("disk", None), (None, "client")],
    indirect=["where"],
)  # fmt: skip
def test_masked_numbers_are_missing_ones(cache: Any, where: Any) -> None:
    configure(cache=cache)
    at = RNG.random(X.shape) < 0.1
    given, missing = masked(X, at), np.where(at, np.nan, X)
    expected = LinearRegressor().fit(missing, NUMBERS)
    for rows in (given, cut(given)):
        model = LinearRegressor(client=where).fit(rows, NUMBERS)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(
            dask.compute(model.predict(rows))[0], model.predict(missing), rtol=1e-9
        )
    whole = np.ma.masked_equal(X, -9999)  # nothing is
    assert LinearRegressor(client=where).fit(whole, NUMBERS).encoder_ is None
    assert LinearRegressor(client=where).fit(cut(whole), NUMBERS).encoder_ is None


def test_masked_targets_and_weights_are_refused(where: Any) -> None:
    bad = masked(NUMBERS, np.arange(200) < 20)
    labels = masked(Y, np.arange(200) < 20)
    names = np.ma.masked_array(text(Y), np.arange(200) < 20)
    weights = masked(np.ones(200), np.arange(200) == 60)
    for rows, lazy in ((X, lambda v: v), (cut(X), cut)):
        with pytest.raises(ValueError, match="NaN"):
            LinearRegressor(client=where).fit(rows, lazy(bad))
        for y in (labels, names):
            with pytest.raises(ValueError, match=r"NaN|missing label"):
                LinearClassifier(client=where).fit(rows, lazy(y))
        with pytest.raises(ValueError, match=r"sample_weight.* holds NaN, in row"):
            LinearRegressor(client=where).fit(rows, lazy(NUMBERS), lazy(weights))
    with pytest.raises(ValueError, match="y_true contains NaN"):
        metrics.mean_squared_error(cut(bad), cut(NUMBERS))


# Sparse matrices.


def roomy(made: Any, value: float = 99.0) -> Any:
    """The same matrix, with entries behind its last row, which belong to none."""
    made = made.copy()
    made.data = np.r_[made.data, np.full(500, value)]
    made.indices = np.r_[made.indices, np.zeros(500, made.indices.dtype)]
    return made


def unsigned(made: Any) -> Any:
    made = made.copy()
    made.indices, made.indptr = made.indices.astype("u4"), made.indptr.astype("u4")
    return made


WIDE: Any = scipy.sparse.random(200, 300, 0.05, "csr", random_state=0)
OF_WIDE = (np.asarray(WIDE.sum(1)).ravel() > 7.5).astype(int)


@pytest.mark.parametrize(
    ("make", "kind", "change"),
    [
        (LinearClassifier, "csr", unsigned),
        (LinearClassifier, "csc", lambda S: roomy(S, np.nan)),
        (lambda: MLPClassifier(max_iter=3, random_state=0), "csr", lambda S: roomy(S, np.nan)),
        (lambda: FMClassifier(max_iter=3, random_state=0, normalize=False), "csc", roomy),
    ],
)
def test_equal_matrices_are_learned_alike(make: Any, kind: str, change: Any, where: Any) -> None:
    odd = change(WIDE.asformat(kind))
    expected = make().set_params(client=where, n_replicas=1).fit(WIDE, OF_WIDE).predict_proba(WIDE)
    model = make().set_params(client=where, n_replicas=1).fit(odd, OF_WIDE)
    np.testing.assert_allclose(model.predict_proba(odd), expected, rtol=1e-9, atol=1e-12)
    lazy = [dask.delayed(odd)], [dask.delayed(OF_WIDE)]
    again = make().set_params(client=where, n_replicas=1).fit(*lazy)
    (found,) = dask.compute(*again.predict_proba(lazy[0]))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


# Frames of objects.


def test_folds_leave_objects_as_they_are(client: Client) -> None:
    words = [["a"] * (k % 3) + ["b"] for k in range(200)]
    y = np.array([len(row) > 1 for row in words]).astype(int)
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dd.from_pandas(pd.DataFrame({"words": words}), npartitions=4)
        labels = dd.from_pandas(pd.Series(y), npartitions=4)
    assert cross_val_score(LinearClassifier(client=client), frame, labels, cv=2).min() > 0.99
