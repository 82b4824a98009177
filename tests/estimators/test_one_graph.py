"""One call computes what it is given by one graph: rows keep their labels, work is done once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from configure import configure
from distributed import Client
from reading import Source
from sklearn.model_selection import GroupKFold

from dps import FMClassifier, LinearClassifier, MLPClassifier
from dps.metrics import accuracy_score, get_scorer
from dps.model_selection import GridSearchCV, PartitionKFold, train_test_split

ROWS, PARTS = 800, 4
EACH = ROWS // PARTS
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"a": RNG.normal(size=ROWS), "b": RNG.normal(size=ROWS)})
FRAME["y"] = (FRAME["a"] > 0).astype(int)
FRAME["w"] = RNG.uniform(0.5, 1.5, ROWS)
FRAME["g"] = np.arange(ROWS) // 8
GAPS = FRAME.assign(b=FRAME["b"].where(np.arange(ROWS) % 5 > 0))
Y = FRAME["y"]
Given = tuple[Any, Any, Any, Any]
PLACES = [None, "client"]


def of_frame(table: Any) -> Given:
    return table[["a", "b"]], table["y"], table["w"], table["g"]


def frame(source: Source, rows: pd.DataFrame = FRAME) -> Given:
    return of_frame(dd.from_pandas(rows, npartitions=PARTS).map_partitions(source, meta=rows[:0]))


def mapped(source: Source) -> Given:
    """A function that Dask gives the columns that are wanted."""

    def read(at: int, columns: Any = None) -> pd.DataFrame:
        part = source(FRAME.iloc[at : at + EACH])
        return part if columns is None else part[columns]

    return of_frame(dd.from_map(read, range(0, ROWS, EACH), meta=FRAME[:0]))


def array(source: Source, rows: pd.DataFrame = FRAME) -> Given:
    values = da.from_array(rows.to_numpy(), chunks=(EACH, rows.shape[1]))
    table = values.map_blocks(source, dtype=float, meta=np.empty((0, 0)))
    return table[:, :2], table[:, 2].astype(int), abs(table[:, 3]), table[:, 4]


def lists(source: Source) -> Given:
    parts = [dask.delayed(source)(FRAME.iloc[at::PARTS].to_numpy()) for at in range(PARTS)]
    y = da.concatenate([da.from_delayed(part[:, 2], (EACH,), dtype=float) for part in parts])
    return [part[:, :2] for part in parts], y.astype(int), [part[:, 3] for part in parts], None


SOURCES: dict[str, Callable[[Source], Given]] = {
    "frame": frame,
    "from_map": mapped,
    "array": array,
    "lists beside an array": lists,
    "frame with gaps": partial(frame, rows=GAPS),
    "array with gaps": partial(array, rows=GAPS),
}


@pytest.fixture(params=PLACES)
def where(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("client") if request.param else None


def in_turn(*cases: Any) -> pytest.MarkDecorator:
    """The first case in this process, the second on the cluster, and so on."""
    return pytest.mark.parametrize(
        ("name", "where"), [*zip(cases, cycle(PLACES), strict=False)], indirect=["where"]
    )


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "readings")


def local(name: str) -> tuple[Any, Any]:
    """The same rows and labels in this process."""
    rows = (GAPS if "gaps" in name else FRAME)[["a", "b"]]
    return (rows if name.startswith("f") else rows.to_numpy()), Y


@pytest.mark.parametrize("name", SOURCES)
def test_a_fit_reads_once_and_rows_keep_their_labels(name: str, source: Source, where: Any) -> None:
    X, y, w, _ = SOURCES[name](source)
    model = LinearClassifier(client=where).fit(X, y, w)
    assert source.readings == PARTS
    assert model.score(*local(name)) > 0.98


@pytest.mark.parametrize("make", [MLPClassifier, FMClassifier])
def test_other_models_do_so_too(make: Any, source: Source, client: Client) -> None:
    X, y, w, _ = frame(source)
    model = make(max_iter=20, random_state=0, client=client, mode="async").fit(X, y, w)
    assert source.readings == PARTS
    assert model.score(*local("frame")) > 0.9


@pytest.mark.parametrize("name", ["frame", "array"])
def test_validation_rows_are_read_with_the_others(name: str, source: Source, where: Any) -> None:
    X, y, w, _ = SOURCES[name](source)
    model = LinearClassifier(client=where).fit(X, y, X_val=X, y_val=y, sample_weight_val=w)
    assert source.readings == PARTS
    assert model.history_[-1]["validation_loss"] < 0.2


def test_what_is_beside_local_rows_is_read_once(source: Source, where: Any) -> None:
    X, y, w, _ = frame(source)
    LinearClassifier(client=where).fit(*local("frame"), w, X_val=X, y_val=y, sample_weight_val=w)
    assert source.readings == PARTS


@in_turn(*SOURCES)
def test_a_score_reads_once_and_is_right(name: str, source: Source, where: Any) -> None:
    model = LinearClassifier(client=where).fit(*local(name))
    X, y, w, _ = SOURCES[name](source)
    assert model.score(X, y, w) > 0.98
    assert source.readings == PARTS
    assert get_scorer("roc_auc")(model, X, y, w) > 0.98
    assert source.readings == PARTS
    assert accuracy_score(y, model.predict(X), sample_weight=w, client=where) > 0.98
    assert source.readings == PARTS


@pytest.mark.parametrize(
    ("name", "cv", "where"),
    [
        ("frame", 3, "client"), ("array", PartitionKFold(2, by="partitions"), None),
        ("frame", GroupKFold(3), "client"),
    ],
    indirect=["where"],
)  # fmt: skip
def test_searches_and_folds_read_once(name: str, cv: Any, source: Source, where: Any) -> None:
    X, y, w, g = SOURCES[name](source)
    groups = {"groups": g} if isinstance(cv, GroupKFold) else {}
    search = GridSearchCV(LinearClassifier(client=where), {"alpha": [1e-4, 1e-2]}, cv=cv)
    assert search.fit(X, y, sample_weight=w, **groups).best_score_ > 0.95
    assert source.readings == PARTS


def test_sides_of_a_split_belong_together(source: Source, where: Any) -> None:
    X, y, *_ = frame(source)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    model = LinearClassifier(client=where).fit(X_train, y_train, X_val=X_test, y_val=y_test)
    assert source.readings == PARTS
    assert model.score(X_test, y_test) > 0.95
    assert source.readings == PARTS


@in_turn("frame", "array", "frame with gaps", "lists beside an array")
def test_a_source_that_does_not_repeat_itself_is_named(
    name: str, source: Source, where: Any
) -> None:
    X, y, w, _ = SOURCES[name](source)
    configure(cache=None)
    with pytest.warns(UserWarning, match="partition 0 has other rows each time it is computed"):
        model = LinearClassifier(client=where).fit(X, y, w)
    assert model.score(*local(name)) > 0.98  # rows and labels of an epoch are of one reading


def test_a_source_that_repeats_itself_is_not(where: Any) -> None:
    mixed = GAPS.assign(s=list("abcd") * EACH, o=[[1], [2, 3]] * (ROWS // 2))
    configure(cache=None)
    for rows in (FRAME, GAPS, mixed):
        table = dd.from_pandas(rows, npartitions=PARTS)
        LinearClassifier(client=where).fit(table.drop(columns=["y", "w", "g"]), table["y"])


def test_work_that_all_partitions_share_is_done_once(source: Source, where: Any) -> None:
    rows = dd.from_pandas(FRAME, npartitions=PARTS)
    first = rows.partitions[0].map_partitions(source, meta=FRAME[:0]).to_delayed()[0]
    parts = [part - first["a"].mean() for part in rows[["a", "b"]].to_delayed()]
    LinearClassifier(client=where).fit(parts, rows["y"])
    assert source.readings == 1
