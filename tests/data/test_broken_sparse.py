"""Sparse matrices that point outside of themselves are refused before anything follows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from configure import configure
from distributed import Client

import dps
from dps.data.survey.rows import WIDE, inspect_partition

ROWS, COLUMNS = 40, 6
Y = np.arange(ROWS) % 2


def sound(width: int = COLUMNS, kind: Any = scipy.sparse.csr_array) -> Any:
    X = scipy.sparse.random(ROWS, width, 0.5 * COLUMNS / width, format="csr", random_state=0)
    return kind(X)


def with_index(index: int) -> Callable[[Any], None]:
    def break_it(X: Any) -> None:
        X.indices[len(X.indices) // 2] = index

    return break_it


def falling(X: Any) -> None:
    X.indptr[3] = X.indptr[2] - 1


def exceeding(X: Any) -> None:
    X.indptr[-1] += 10**6


def beginning_late(X: Any) -> None:
    X.indptr[0] = 1


def short(X: Any) -> None:
    X.data = X.data[:-1]


DEFECTS = {
    "one too far": (with_index(COLUMNS), "row .* has the column index 6, of 6 columns"),
    "far out": (with_index(10**8), "row .* has the column index 100000000, of 6 columns"),
    "negative": (with_index(-1), "row .* has the column index -1, of 6 columns"),
    "falls": (falling, "its indptr falls from .* at row 2"),
    "exceeds": (exceeding, "its indptr ends with .*, and .* values are stored"),
    "begins late": (beginning_late, "its indptr begins with 1 instead of 0"),
    "too few values": (short, "its indptr ends with .*, and .* values are stored"),
}  # fmt: skip
every_defect = pytest.mark.parametrize("name", DEFECTS)


def broken(name: str, width: int = COLUMNS) -> tuple[Any, str]:
    X = sound(width)
    break_it, message = DEFECTS[name]
    break_it(X)
    return X, message


def lists(broken: Any) -> tuple[Any, Any]:
    return (
        [dask.delayed(sound()), dask.delayed(broken)],
        [dask.delayed(Y), dask.delayed(Y)],
    )


def blocks(parts: Any) -> Any:
    meta = scipy.sparse.csr_array((0, COLUMNS))
    return da.concatenate(
        [da.from_delayed(part, (ROWS, COLUMNS), meta=meta, dtype=float) for part in parts]
    )


@every_defect
def test_a_fit_refuses_them(name: str) -> None:
    X, message = broken(name)
    with pytest.raises(ValueError, match=f"X is a broken csr matrix: {message}"):
        dps.LinearClassifier().fit(X, Y)
    for cache in ("auto", "memory", "disk"):
        configure(cache=cache)
        with pytest.raises(ValueError, match=f"X in partition 1 is a broken csr.*{message}"):
            dps.LinearClassifier().fit(*lists(X))


@every_defect
def test_a_fit_on_workers_refuses_them(name: str, client: Client) -> None:
    X, message = broken(name)
    model = dps.LinearClassifier(client=client)
    for given in ((X, Y), lists(X)):
        with pytest.raises(ValueError, match=message):
            model.fit(*given)


@every_defect
def test_predictions_refuse_them(name: str) -> None:
    X, message = broken(name)
    model = dps.LinearClassifier(max_iter=2, tol=None).fit(sound(), Y)
    with pytest.raises(ValueError, match=f"X is a broken csr matrix: {message}"):
        model.predict(X)
    parts = lists(X)[0]
    for predicted in (model.predict(parts), model.predict_proba(blocks(parts))):
        with pytest.raises(ValueError, match=f"X in partition 1 is a broken csr.*{message}"):
            dask.compute(predicted, scheduler="sync")


def test_columns_that_occur_are_not_counted_in_a_broken_one() -> None:
    X = sound(width=2 * WIDE)
    X.indices[5] = 10**8
    with pytest.raises(ValueError, match="has the column index 100000000, of 8192 columns"):
        dps.LinearClassifier().fit(X, Y)


def other_formats() -> dict[str, Any]:
    csc, bsr = sound().tocsc(), sound().tobsr((2, 2))
    csc.indices[3] = ROWS
    bsr.indices[3] = COLUMNS // 2
    coo, lil = sound().tocoo(), sound().tolil()
    coo.col[7] = COLUMNS
    lil.rows[4] = [COLUMNS + 1]
    lil.data[4] = [1.0]
    return {X.format: X for X in (csc, bsr, coo, lil)}


@pytest.mark.parametrize("format", ["csc", "bsr", "coo", "lil"])
def test_other_formats_are_looked_at_before_they_are_converted(format: str) -> None:
    X = other_formats()[format]
    with pytest.raises(ValueError, match=f"X is a broken {format} matrix: .* index"):
        dps.LinearClassifier().fit(X, Y)
    configure(cache="disk")
    with pytest.raises(ValueError, match=f"X in partition 1 is a broken {format} matrix"):
        dps.LinearClassifier().fit(*lists(X))
    defect = inspect_partition(X, Y, None, classification=True).defect
    assert defect is not None
    assert "index" in defect


@pytest.mark.parametrize("format", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
def test_sound_ones_have_no_defect(format: str) -> None:
    for X in (sound(), scipy.sparse.csr_array((ROWS, COLUMNS)), scipy.sparse.csr_array((0, 3))):
        given = X.asformat(format)
        found = inspect_partition(given, Y[: X.shape[0]], None, classification=True)
        assert found.defect is None
        assert found.elements == X.nnz


@pytest.mark.parametrize(
    ("name", "wrong"), [("far out", "index 100000000, of 6"), ("short", "it was .40, 6. at first")]
)
def test_what_is_computed_again_is_checked_again(
    name: str, wrong: str, client: Client, tmp_path: Any
) -> None:
    times = tmp_path / "times"

    @dask.delayed(pure=False)
    def computed() -> Any:
        X = sound()
        with times.open("a") as file:
            file.write("x")
        if len(times.read_text()) > 2:  # it was sound when it was looked at
            if name == "short":
                return X[:-1]
            DEFECTS[name][0](X)
        return X

    X = da.from_delayed(computed(), (ROWS, COLUMNS), meta=sound()[:0])
    configure(cache=None)
    model = dps.LinearClassifier(client=client, max_iter=5, tol=None, n_replicas=1)
    again = f"(?s){wrong}.*partition 0 could not be read again"
    with pytest.raises(ValueError, match=again):
        model.fit(X, da.from_array(Y, chunks=ROWS))
