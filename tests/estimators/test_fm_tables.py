"""Factorization machines whose rows come when they are touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from configure import configure, placed
from inside import carry_of

import dps
from dps import FMClassifier, FMRegressor, LinearClassifier
from dps.errors import TableFullError
from dps.estimators.predict import tables as lookups
from dps.models.base import CSRRows
from dps.preprocessing import FrameEncoder
from dps.server.store import snapshots
from dps.training.run import launch

N, FIELD = 3000, 50
OPTIONS: dict[str, Any] = {
    "n_factors": 3, "max_embeddings": 1000, "max_iter": 3, "tol": None, "early_stopping": False,
    "random_state": 0, "n_replicas": 2,
}  # fmt: skip


def people() -> tuple[pd.DataFrame, Any]:
    """Choices of people; a tenth of the columns of either is never touched."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "who": pd.Categorical(rng.integers(0, 45, N), range(FIELD)),
            "what": pd.Categorical(rng.integers(0, 45, N), range(FIELD)),
            "age": rng.integers(20, 60, N),
        }
    )
    taste = rng.normal(size=(2, FIELD, 2))
    liked = (taste[0][frame["who"]] * taste[1][frame["what"]]).sum(axis=1)
    return frame, (liked + frame["age"] / 40 - 1 > 0).to_numpy()


FRAME, LIKED = people()
SPARSE = scipy.sparse.csr_array(FrameEncoder().fit_transform(FRAME[["who", "what"]]))


def facts(model: Any) -> tuple[Any, ...]:
    """The results of a fit, row by row of the ids that have one."""
    return model.embeddings().to_numpy().tobytes(), model.intercept_.tobytes(), model.loss_


@pytest.fixture(scope="module")
def trained() -> FMClassifier:
    return FMClassifier(**OPTIONS).fit(FRAME, LIKED)


def test_rows_are_those_that_were_touched_and_have_names(trained: FMClassifier) -> None:
    table = trained.embeddings()
    for field in ("who", "what"):
        assert sorted(table.loc[field].index) == list(range(45))
    assert set(table.loc["age"].index) <= set(trained._model.inputs.knots[0])
    assert trained.factors_.shape == (len(table), 3)
    assert trained.score(FRAME, LIKED) > 0.8


@pytest.mark.parametrize("layers", [(), (8,)], ids=["alone", "layers"])
def test_shards_and_replicas_elsewhere_do_not_change_a_bit(layers: Any, client: Any) -> None:
    options = {**OPTIONS, "hidden_layer_sizes": layers, "dropout": 0.0}
    wanted = facts(FMClassifier(**options).fit(FRAME, LIKED))
    assert facts(FMClassifier(**placed({**options, "n_shards": 3})).fit(FRAME, LIKED)) == wanted
    lazy = dd.from_pandas(FRAME, 2), dd.from_pandas(pd.Series(LIKED), 2)
    found = [
        facts(
            FMClassifier(mode=mode, client=client, **placed({**options, "n_shards": shards})).fit(
                *lazy
            )
        )
        for mode, shards in ((dps.Sync(), 1), (dps.Sync(access="stream"), 2))
    ]
    assert found[0] == found[1]


def test_what_no_row_has_come_for_changes_nothing(trained: FMClassifier) -> None:
    unknown = FRAME[:10].copy()
    unknown["who"] = pd.Categorical([49] * 10, range(FIELD))
    unknown_people = FRAME[:10].copy()
    unknown_people["who"] = pd.Categorical([48] * 10, range(FIELD))
    np.testing.assert_array_equal(
        trained.decision_function(unknown), trained.decision_function(unknown_people)
    )
    assert (trained.decision_function(unknown) != trained.decision_function(FRAME[:10])).any()


def test_early_stopping_validates_by_keys_and_keeps_the_best_epoch() -> None:
    options = {**OPTIONS, "max_iter": 12, "early_stopping": True, "learning_rate": 1.0}
    model = FMClassifier(**options).fit(FRAME, LIKED)
    losses = [record["validation_loss"] for record in model.history_]
    best = int(np.argmin(losses)) + 1
    again = FMClassifier(**{**options, "max_iter": best}).fit(FRAME, LIKED)
    assert [record["validation_loss"] for record in again.history_] == losses[:best]
    np.testing.assert_array_equal(again.factors_, model.factors_)


def test_training_goes_on_with_rows_state_and_versions_on_any_shards(tmp_path: Any) -> None:
    first = FMClassifier(**OPTIONS).fit(FRAME, LIKED)
    first.save(tmp_path / "model")
    loaded = dps.load(tmp_path / "model")
    assert facts(loaded)[:2] == facts(first)[:2]
    np.testing.assert_array_equal(loaded.predict_proba(FRAME), first.predict_proba(FRAME))
    later = FRAME.copy()
    later["who"] = pd.Categorical(np.arange(N) % FIELD, range(FIELD))  # among them new ones
    one = first.partial_fit(later, LIKED)
    assert sorted(one.embeddings().loc["who"].index) == list(range(FIELD))
    configure(n_shards=3)
    other = loaded.partial_fit(later, LIKED)
    assert facts(other)[:2] == facts(one)[:2]


def test_async_learns_as_much_and_makes_the_same_rows() -> None:
    options = {**OPTIONS, "max_iter": 15}
    sync = FMClassifier(**options).fit(SPARSE, LIKED)
    later = FMClassifier(**options, mode="async").fit(SPARSE, LIKED)
    assert later.embeddings().index.equals(sync.embeddings().index)
    assert later.loss_ == pytest.approx(sync.loss_, rel=0.05)


def test_what_is_seldom_touched_is_not_admitted() -> None:
    rare = FRAME.copy()
    who = np.array(rare["who"])
    who[:3] = [47, 48, 49]
    rare["who"] = pd.Categorical(who, range(FIELD))
    all_of_them = FMClassifier(**OPTIONS).fit(rare, LIKED).embeddings().loc["who"]
    some = FMClassifier(**OPTIONS, min_count=2).fit(rare, LIKED).embeddings().loc["who"]
    assert set(all_of_them.index) - set(some.index) == {47, 48, 49}


def test_what_is_not_touched_any_more_expires() -> None:
    model = FMClassifier(**OPTIONS, expire_after=2).fit(FRAME, LIKED)
    later = FRAME.copy()
    later["who"] = pd.Categorical(np.arange(N) % 20, range(FIELD))
    for epoch in range(3):
        model.partial_fit(later, LIKED)
        wanted = range(45 if epoch < 1 else 20)
        assert sorted(model.embeddings().loc["who"].index) == list(wanted)


@pytest.mark.parametrize("table", [None, 3000], ids=["all rows", "a table"])
@pytest.mark.parametrize("mode", [dps.Sync(), dps.Sync(access="stream")], ids=["mapped", "stream"])
def test_steps_without_rows_push_nothing_of_the_rows_that_were_validated(
    mode: Any, table: Any, client: Any
) -> None:
    def rows(n: int, columns: int) -> Any:
        rng = np.random.default_rng(n)
        at = rng.integers(0, columns, 4 * n), np.arange(0, 4 * n + 1, 4)
        return scipy.sparse.csr_matrix((np.ones(4 * n), *at), (n, 20_000))

    def lazy(*parts: Any) -> Any:
        return da.concatenate([da.from_array(part, chunks=(-1, -1)) for part in parts])

    labels = np.arange(8000) % 2
    X, y = lazy(rows(200, 40), rows(3, 40)), da.from_array(labels[:203], chunks=((200, 3),))
    configure(rebalance=False)
    model = FMClassifier(
        2, max_iter=3, batch_size=2, n_replicas=2, optimizer="adagrad",
        average=False, early_stopping=True, mode=mode, max_embeddings=table, client=client,
        random_state=0,
    ).fit(X, y, X_val=lazy(rows(4000, 3000)), y_val=da.from_array(labels[:4000]))  # fmt: skip
    assert [sum(record["rows_per_replica"]) for record in model.history_] == [203] * 3


@pytest.mark.parametrize(("before", "after"), [(None, 400), (400, None), (400, 600)])
def test_a_warm_start_knows_a_table_from_whole_rows(before: Any, after: Any) -> None:
    X = scipy.sparse.csr_array(SPARSE[:, :100])
    model = FMClassifier(**{**OPTIONS, "max_embeddings": before}, warm_start=True).fit(X, LIKED)
    with pytest.raises(ValueError, match="max_embeddings was"):
        model.set_params(max_embeddings=after).fit(X, LIKED)


def test_what_cannot_be_is_said_before_or_where_it_happens() -> None:
    with pytest.raises(ValueError, match="mode='allreduce', in which each replica holds all"):
        FMClassifier(**OPTIONS, mode="allreduce").fit(FRAME, LIKED)
    with pytest.raises(ValueError, match="max_embeddings needs sparse rows"):
        FMRegressor(**OPTIONS).fit(np.eye(20), np.arange(20.0))
    with pytest.raises(TableFullError, match="raise max_embeddings"):
        FMClassifier(**{**OPTIONS, "max_embeddings": 40}).fit(FRAME, LIKED)
    with pytest.raises(ValueError, match="not possible with average=True"):
        FMClassifier(**OPTIONS, average=True).fit(FRAME, LIKED)
    with pytest.raises(ValueError, match="not possible with optimizer='adam'"):
        FMClassifier(**OPTIONS, optimizer="adam").fit(FRAME, LIKED)
    with pytest.raises(ValueError, match="no effect without max_embeddings"):
        FMClassifier(min_count=5).fit(FRAME, LIKED)


def test_a_table_that_is_on_the_shards_is_not_taken_for_one_that_is_here() -> None:
    model = FMClassifier(**OPTIONS).fit(SPARSE, LIKED)
    machine, rows = carry_of(model).model, CSRRows(
        SPARSE.data, SPARSE.indices, SPARSE.indptr, SPARSE.shape[1]
    )  # fmt: skip
    params = carry_of(model).params
    with pytest.raises(ValueError, match="take steps by keys"):
        machine.loss_gradient(params, rows, LIKED.astype(params.dtype), None, np.zeros_like(params))
    with pytest.raises(ValueError, match="not all rows"):
        machine.raw(params, rows)


@pytest.mark.parametrize("form", ["array", "frame", "list"])
def test_a_table_in_pieces_on_the_workers_predicts_the_same_bits(
    form: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X: Any = FRAME if form == "frame" else SPARSE
    model = FMClassifier(**OPTIONS).fit(X, LIKED)
    wanted = model.predict_proba(X)
    monkeypatch.setattr(lookups, "_WHOLE", 100)
    monkeypatch.setattr(lookups, "_PIECE", 500)
    lazy: Any = dd.from_pandas(FRAME, 3)
    if form == "array":
        lazy = da.concatenate([da.from_array(SPARSE[:1000]), da.from_array(SPARSE[1000:])])
    elif form == "list":
        lazy = [dask.delayed(SPARSE[:1000]), dask.delayed(SPARSE[1000:])]
    found = model.predict_proba(lazy)
    if form == "frame":
        assert found.divisions == lazy.divisions
        found = found.compute()
        assert [*found.columns] == [*model.predict_proba(dd.from_pandas(FRAME, 3)).columns]
    elif form == "list":
        found = np.concatenate(dask.compute(*found))
    np.testing.assert_array_equal(np.asarray(found), wanted)
    labels = np.concatenate(dask.compute(*model.predict(lazy))) if form == "list" else None
    if labels is None:
        labels = np.asarray(model.predict(lazy))
    np.testing.assert_array_equal(labels, model.predict(X))


def test_a_large_table_is_on_its_own_shards_and_its_snapshots_on_disk(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy = dd.from_pandas(FRAME, 2), dd.from_pandas(pd.Series(LIKED), 2)
    options = {**OPTIONS, "early_stopping": True, "client": client}
    small = FMClassifier(**options).fit(*lazy)
    monkeypatch.setattr(launch, "_LARGE", 1e-9)
    monkeypatch.setattr(snapshots, "_PIECE_BYTES", 1000)
    large = FMClassifier(**options).fit(*lazy)
    assert (len(small.plan_.shards), len(large.plan_.shards)) == (1, 2)
    assert facts(large) == facts(small)
    assert facts(large.partial_fit(*lazy)) == facts(small.partial_fit(*lazy))


def test_a_model_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mode=Hybrid.* is for models with a table"):
        LinearClassifier(mode="hybrid", optimizer="sgd").fit(np.eye(4), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="for models with a table"):
        FMClassifier(mode="hybrid").fit(np.eye(40), np.arange(40) % 2)


@pytest.mark.parametrize("access", ["auto", "stream"])
def test_hybrid_learns_as_much_as_sync_and_alone_the_same_bits(access: str, client: Any) -> None:
    lazy = dd.from_pandas(FRAME, 4), dd.from_pandas(pd.Series(LIKED), 4)
    options = {**OPTIONS, "max_iter": 10, "expire_after": 5, "client": client}
    mode = dps.Hybrid(access=access)
    sync = FMClassifier(**options).fit(*lazy)
    hybrid = FMClassifier(**options, mode=mode).fit(*lazy)
    assert hybrid.embeddings().index.equals(sync.embeddings().index)
    assert hybrid.loss_ < 1.3 * sync.loss_
    assert hybrid.score(*lazy) > sync.score(*lazy) - 0.02
    assert [sum(record["rows_per_replica"]) for record in hybrid.history_] == [3000] * 10
    assert (hybrid.embeddings() != sync.embeddings()).any(axis=None)
    alone = {**options, "n_replicas": 1, "hidden_layer_sizes": (8,), "max_iter": 2}
    assert facts(FMClassifier(**alone, mode=mode).fit(*lazy)) == facts(
        FMClassifier(**alone).fit(*lazy)
    )


_LATER_DAYS = """
import sys
import dps
from test_fm_tables import day_of_strings, days_later
days_later(dps.load(sys.argv[1])).save(sys.argv[2])
"""


def day_of_strings(day: int) -> tuple[pd.DataFrame, Any]:
    """Rows of a day, which has half of the values of the day before."""
    rng = np.random.default_rng(day)
    who = rng.integers(20 * day, 20 * day + 40, 600)
    frame = pd.DataFrame({"who": [f"ann{number}" for number in who], "what": ["tea", "ale"] * 300})
    return frame, (who + np.arange(600)) % 2


def days_later(model: Any) -> Any:
    """The model after another day as a whole, and one in two parts."""
    model.partial_fit(*day_of_strings(1))
    rows, clicked = day_of_strings(2)
    for part in (slice(0, 300), slice(300, 600)):
        model.partial_fit(rows[part], clicked[part])
    return model


def test_days_in_two_processes_make_the_same_model(tmp_path: Path) -> None:
    options = {**OPTIONS, "expire_after": 2, "encoder": FrameEncoder(n_buckets=1 << 16)}
    model = FMClassifier(**options).fit(*day_of_strings(0))
    model.save(tmp_path / "first day")
    known = [set(model.embeddings().loc["who"].index)]
    subprocess.run(
        [sys.executable, "-c", _LATER_DAYS, tmp_path / "first day", tmp_path / "third day"],
        check=True, timeout=120, cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    apart, model = dps.load(tmp_path / "third day"), days_later(model)
    assert facts(apart)[:2] == facts(model)[:2]
    coming = day_of_strings(3)[0]
    np.testing.assert_array_equal(apart.predict_proba(coming), model.predict_proba(coming))
    known.append(set(model.embeddings().loc["who"].index))
    assert known[1] - known[0]  # new values have rows
    assert known[0] - known[1]  # and old ones have none any more
