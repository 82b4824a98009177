"""Factorization machines: what their users are promised, on small data and that of the bars."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import slow
from configure import placed
from dask.distributed import Client
from inside import params_of
from sklearn.datasets import load_iris, make_friedman1
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import OneHotEncoder

import dps
from dps.optimizers import Adagrad, AdamW, Averaged, Momentum
from public_data import DATA

RNG = np.random.default_rng(0)
X, Y = make_friedman1(600, n_features=6, noise=0.3, random_state=0)
LABELS = np.where(np.median(Y) < Y, "high", "low")
QUICK: dict[str, Any] = {"n_factors": 4, "max_iter": 4, "random_state": 0}
LAYERS = ((), (8, 4))


def likes(n: int, seed: int = 0) -> tuple[pd.DataFrame, Any]:
    """Choices that depend on pairs, which no single weight explains: a frame and labels."""
    rng = np.random.default_rng(seed)
    who, what = rng.integers(0, 60, n), rng.integers(0, 40, n)
    frame = pd.DataFrame(
        {"who": who, "what": what, "age": rng.integers(15, 80, n), "noise": rng.normal(size=n)}
    )
    frame[["who", "what"]] = frame[["who", "what"]].astype("category")
    return frame, np.where((who % 2) == (what % 2), "yes", "no")


def bits(model: Any) -> bytes:
    made: bytes = params_of(model).tobytes()
    return made


@pytest.mark.parametrize("layers", LAYERS)
def test_all_ways_to_train_in_step_give_the_same_bits(client: Client, layers: Any) -> None:
    rows, labels = da.from_array(X, chunks=(97, 6)), da.from_array(Y, chunks=97)
    ways: list[dict[str, Any]] = [
        {"mode": "sync", "n_shards": 1, "client": client},
        {"mode": "sync", "n_shards": 3, "client": client},
        {"mode": "allreduce", "n_shards": 2, "client": client},
        {"mode": dps.Sync(access="stream"), "n_shards": 2, "client": client},
    ]
    made = [
        bits(dps.FMRegressor(**QUICK, hidden_layer_sizes=layers, n_replicas=2, **placed(way))
             .fit(rows, labels)) for way in ways
    ]  # fmt: skip
    assert made == made[:1] * len(made)


@pytest.mark.parametrize("mode", ["sync", *slow("async", "allreduce")])
def test_pairs_are_learned_that_a_linear_model_cannot_see(mode: str) -> None:
    (frame, liked), (other, wanted) = likes(4000), likes(1000, 1)
    assert dps.LinearClassifier().fit(frame, liked).score(other, wanted) < 0.6
    for layers in LAYERS:
        model = dps.FMClassifier(
            4, hidden_layer_sizes=layers, mode=mode, n_replicas=2, random_state=0
        )
        assert model.fit(frame, liked).score(other, wanted) > 0.95


def test_predictions_are_those_of_the_formula_and_its_fitted_attributes() -> None:
    words = scipy.sparse.random_array((500, 300), density=0.05, format="csr", random_state=1)
    for targets in (words.sum(axis=1), np.c_[words.sum(axis=1), -words[:, [0]].toarray()]):
        model = dps.FMRegressor(**QUICK).fit(words, targets)
        dense, factors = words.toarray(), model.factors_.astype(float)
        products = ((dense @ factors) ** 2 - dense**2 @ factors**2) / 2
        expected = model.intercept_ + dense @ np.atleast_2d(model.coef_).T
        expected = expected + products @ model.factor_weights_.T
        found = model.predict(words).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_long_texts_count_as_short_ones() -> None:
    words = scipy.sparse.random_array((900, 300), density=0.05, format="csr", random_state=1)
    kind = words @ RNG.normal(size=300) > 0
    longer = scipy.sparse.diags_array(RNG.pareto(0.7, 900) + 1) @ words
    model = dps.FMClassifier(random_state=0).fit(longer[:600], kind[:600])
    assert model.score(words[600:], kind[600:]) > 0.75
    np.testing.assert_allclose(model.predict_proba(longer), model.predict_proba(words), rtol=1e-3)
    as_they_are = dps.FMClassifier(**QUICK, normalize=False).fit(words, kind)
    assert (as_they_are.predict_proba(words) != as_they_are.predict_proba(2 * words)).any()


def test_of_numbers_weights_and_factors_are_linear_between_knots() -> None:
    model = dps.FMRegressor(**QUICK).fit(X, Y)
    table = model.embeddings()
    assert table.index.names == ["field", "category"]
    row, expected = X[7], np.zeros(5)
    for name in ("x0", "x1", "x2", "x3", "x4", "x5"):
        of = table.loc[name]
        values = np.array([np.interp(row[int(name[1])], of.index, of[c]) for c in of.columns])
        expected += [values[0], *values[1:]]
    assert model.coef_ @ _unit(model, row) == pytest.approx(expected[0], rel=1e-4)
    np.testing.assert_allclose(_unit(model, row) @ model.factors_, expected[1:], rtol=1e-4)


def _unit(model: Any, row: Any) -> Any:
    """The share of each row of the table in a row of numbers."""
    parts = []
    for j, (_, of) in enumerate(model.embeddings().groupby(level=0)):
        knots = of.index.get_level_values(1)
        parts.append([np.interp(row[j], knots, unit) for unit in np.eye(len(knots))])
    return np.concatenate(parts)


def test_embeddings_have_the_names_of_fields_and_categories() -> None:
    frame, liked = likes(400)
    table = dps.FMClassifier(**QUICK).fit(frame, liked).embeddings()
    assert table.columns.tolist() == ["weight", *(f"factor_{f}" for f in range(4))]
    assert set(table.index.get_level_values("field")) == {"who", "what", "age", "noise"}
    assert table.loc["what"].index.tolist() == sorted(frame["what"].unique())
    wide = scipy.sparse.random_array((200, 400), density=0.05, format="csr", random_state=1)
    model = dps.FMClassifier(**QUICK).fit(wide, np.arange(200) % 3)
    assert model.embeddings().index[:2].tolist() == ["x0", "x1"]
    assert model.embeddings().columns[:3].tolist() == ["weight_0", "weight_1", "weight_2"]


@pytest.mark.parametrize(
    "container",
    [
        lambda: X,
        lambda: np.asfortranarray(X),
        lambda: X.tolist(),
        lambda: pd.DataFrame(X).to_numpy(),
        lambda: scipy.sparse.csr_array(X),
        lambda: scipy.sparse.csc_array(X),
    ],
    ids=["dense", "fortran", "lists", "frame", "csr", "csc"],
)
def test_any_container_gives_the_same_machine(container: Any) -> None:
    for layers in LAYERS:
        options: dict[str, Any] = {**QUICK, "hidden_layer_sizes": layers}
        expected = dps.FMClassifier(**options).fit(X, LABELS)
        model = dps.FMClassifier(**options).fit(container(), LABELS)
        assert bits(model) == bits(expected)
        np.testing.assert_allclose(
            model.predict_proba(container()), expected.predict_proba(X), rtol=1e-6
        )


def test_features_and_targets_of_any_size_give_about_the_same_predictions() -> None:
    factors, shift = np.logspace(-6, 6, 6), np.array([0, 0, 0, 1e3, 1e9, -1e5])
    for layers in LAYERS:
        for size in (1e-6, 1e4):
            model = dps.FMRegressor(hidden_layer_sizes=layers, random_state=0)
            rows, targets = X * factors + shift, size * (Y - 7)
            assert model.fit(rows, targets).score(rows, targets) > 0.93


def test_the_best_epoch_is_kept() -> None:
    frame, liked = likes(1500)
    liked = np.where(RNG.random(1500) < 0.35, "no", liked)
    options = {**QUICK, "n_factors": 16, "average": False, "learning_rate": 0.6, "max_iter": 20}
    long = dps.FMClassifier(**options, n_iter_no_change=20).fit(frame, liked)
    losses = [epoch["validation_loss"] for epoch in long.history_]
    best = int(np.argmin(losses)) + 1
    assert 1 < best < 20
    short = dps.FMClassifier(**{**options, "max_iter": best}).fit(frame, liked)
    assert bits(short) == bits(long)


def test_weights_of_rows_and_classes_count() -> None:
    weights = np.where(LABELS == "low", 3.0, 1.0)
    by_class = dps.FMClassifier(**QUICK, class_weight={"low": 3.0, "high": 1.0}).fit(X, LABELS)
    by_row = dps.FMClassifier(**QUICK).fit(X, LABELS, weights)
    plain = dps.FMClassifier(**QUICK).fit(X, LABELS)
    np.testing.assert_allclose(by_class.predict_proba(X), by_row.predict_proba(X), rtol=1e-3)
    assert (by_class.predict(X) == "low").sum() > (plain.predict(X) == "low").sum()
    wrong = np.where(np.arange(600) % 2, Y, 1e3)
    half = dps.FMRegressor(random_state=0).fit(X, wrong, np.arange(600) % 2)
    assert half.score(X[1::2], Y[1::2]) > 0.85


@pytest.mark.parametrize(
    ("loss", "layers"),
    [
        ("huber", ()), ("quantile", (8, 4)), ("epsilon_insensitive", ()), ("poisson", (8, 4)),
        ("gamma", ()),
    ],
)  # fmt: skip
def test_losses_of_regressions(loss: str, layers: Any) -> None:
    positive = Y - Y.min() + 1
    model = dps.FMRegressor(loss=loss, hidden_layer_sizes=layers, random_state=0)
    assert model.fit(X, positive).score(X, positive) > 0.85


def test_several_classes_and_outputs_share_their_factors() -> None:
    iris, species = load_iris(return_X_y=True)
    for loss in ("log_loss", "hinge"):
        model = dps.FMClassifier(loss=loss, random_state=0).fit(iris, species)
        assert model.score(iris, species) > 0.94
        assert model.coef_.shape == (3, len(model.factors_))
        assert model.factor_weights_.shape == (3, 16)
    several = dps.FMRegressor(random_state=0).fit(X, np.c_[Y, -2 * Y + 5])
    assert several.predict(X).shape == (600, 2)
    assert several.score(X, np.c_[Y, -2 * Y + 5]) > 0.9


def test_partial_fit_goes_on_and_warm_start_begins_where_the_last_fit_ended() -> None:
    frame, liked = likes(2000)
    for layers in LAYERS:
        options: dict[str, Any] = {"hidden_layer_sizes": layers, "random_state": 0}
        model = dps.FMClassifier(4, **options)
        for _ in range(25):
            model.partial_fit(frame, liked, classes=["no", "yes"])
        assert model.score(frame, liked) > 0.95
        assert model.history_[0]["rows"] == 2000
        warm = dps.FMClassifier(**{**QUICK, **options}, warm_start=True).fit(frame, liked)
        first = warm.history_[0]["loss"]
        assert warm.fit(frame, liked).history_[0]["loss"] < first
        with pytest.raises(ValueError, match="the fit cannot start from the last one"):
            warm.set_params(n_factors=5).fit(frame, liked)


def test_frames_where_they_lie_lazy_predictions_and_searches() -> None:
    frame, liked = likes(3000)
    lazy, labels = (dd.from_pandas(each, npartitions=3) for each in (frame, pd.Series(liked)))
    model = dps.FMClassifier(4, random_state=0).fit(lazy, labels)
    assert model.score(frame, liked) > 0.97
    assert (model.predict(lazy).compute() == model.predict(frame)).all()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    search = GridSearchCV(dps.FMClassifier(random_state=0, max_iter=12), {"n_factors": [1, 4]})
    assert search.fit(frame, liked).best_score_ > 0.9


def test_columns_of_sparse_rows_are_in_the_fields_that_are_given() -> None:
    frame, liked = likes(3000)
    encoder = OneHotEncoder()
    rows = encoder.fit_transform(frame[["who", "what"]])
    fields = np.repeat([7, 3], [len(each) for each in encoder.categories_])
    model = dps.FMClassifier(4, (8, 4), fields=fields, random_state=0).fit(rows, liked)
    assert model._model.sizes == (8, 8, 4, 1)
    assert model.score(rows, liked) > 0.95
    assert dps.FMClassifier(4, (8,), max_iter=2).fit(rows, liked)._model.inputs.n_fields == 1
    with pytest.raises(ValueError, match="fields must be 100 whole numbers, one for each column"):
        dps.FMClassifier(4, (8,), fields=[0, 1]).fit(rows, liked)
    with pytest.raises(ValueError, match="the fields of an encoded dataframe are its columns"):
        dps.FMClassifier(4, (8,), fields=fields).fit(frame.astype({"who": str}), liked)


def test_what_trains_them_goes_by_how_much_of_the_table_batches_touch() -> None:
    def trained(columns: int, layers: Any) -> Any:
        rows = scipy.sparse.random_array(
            (400, columns), density=5 / columns, format="csr", random_state=1
        )
        model = dps.FMClassifier(**QUICK, hidden_layer_sizes=layers, alpha=0.0)
        return model.fit(rows, np.arange(400) % 2)

    for layers, small in ((), Adagrad), ((4,), AdamW):
        few, many = (trained(columns, layers)._carry.optimizer for columns in (300, 30_000))
        assert isinstance(few, Averaged)
        assert isinstance(few.base, small)
        assert isinstance(many, Adagrad)
    chosen = dps.FMClassifier(**QUICK, optimizer=Momentum(), learning_rate=0.1, average=False)
    assert chosen.fit(X, LABELS)._carry.optimizer == Momentum()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_factors": 0}, "'n_factors' parameter"),
        ({"activation": "gelu"}, "'activation' parameter"),
        ({"learning_rate": "adaptive"}, "'learning_rate' parameter must be a float, a Schedule"),
        ({"optimizer": "lbfgs"}, "'optimizer' parameter must be"),
        ({"hidden_layer_sizes": (8, 0)}, "hidden_layer_sizes must be numbers above 0"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        dps.FMRegressor(**options).fit(X, Y)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the data is not here")
def test_films_and_people_without_tuning() -> None:
    frame = pd.read_parquet(DATA / "movielens-100k.parquet")
    names = ["user_id", "movie_id", "gender", "occupation", "age"]
    rows, liked = frame[names].astype({"user_id": "category", "movie_id": "category"}), frame.rating
    liked, test = (liked >= 4).to_numpy(), np.arange(len(frame)) % 5 == 0
    scores = []
    for layers in ((), (64, 32)):
        model = dps.FMClassifier(hidden_layer_sizes=layers, random_state=0)
        found = model.fit(rows[~test], liked[~test]).predict_proba(rows[test])[:, 1]
        scores.append((roc_auc_score(liked[test], found), log_loss(liked[test], found)))
    assert scores[0][0] > 0.7808
    assert scores[0][1] < 0.5573
    assert scores[1][0] > 0.789
    assert scores[1][1] < 0.551


def many_values(rows: int, seed: int) -> tuple[pd.DataFrame, Any]:
    """Rows of identifiers, many of which occur once, and a number."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({f"id{n}": (rng.zipf(1.15, rows) % 50_000).astype(str) for n in range(10)})
    common = frame["id0"].astype(int).to_numpy() < 5
    frame["size"] = np.where(rng.random(rows) < 0.1, np.nan, rng.lognormal(4, 1, rows))
    return frame, (2.0 * common + rng.logistic(size=rows) > 1.0).astype(int)


@pytest.mark.parametrize(
    "kind", ["frame", "table", "number", *slow("partitions", "layers", "given")]
)
def test_rows_that_are_held_out_say_how_strong_the_penalty_is(kind: str, tmp_path: Path) -> None:
    frame, y = many_values(3000, 0)
    new, of_new = many_values(3000, 1)
    options: dict[str, Any] = {
        "table": {"max_embeddings": 50_000}, "layers": {"hidden_layer_sizes": (8,)},
    }.get(kind, {})  # fmt: skip
    X, given = frame, {}
    if kind == "partitions":
        X, y = dd.from_pandas(frame, npartitions=3), da.from_array(y, chunks=1000)
    if kind == "given":
        given = {"X_val": new, "y_val": of_new}
    if kind == "number":
        model = dps.FMRegressor(4, random_state=0).fit(frame, y + 100.0)
        assert model.alpha_path_.shape[1] == 3
        return
    model = dps.FMClassifier(4, random_state=0, **options).fit(X, y, **given)
    assert model.alpha_ in model.alpha_path_[:, 0]
    assert model.alpha_ > np.sort(model.alpha_path_[:, 0])[0]
    fixed = dps.FMClassifier(4, random_state=0, alpha=1 / 3000, **options).fit(X, y, **given)
    assert fixed.alpha_ == 1 / 3000
    assert not hasattr(fixed, "alpha_path_")
    lost = [log_loss(of_new, one.predict_proba(new)) for one in (model, fixed)]
    assert lost[0] < lost[1]
    model.save(tmp_path / "model")
    loaded = dps.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.alpha_path_, model.alpha_path_)
    few = dps.FMClassifier(4, random_state=0).fit(np.c_[frame["size"].fillna(0)], y)
    assert not hasattr(few, "alpha_path_")


def test_a_second_fold_is_asked_where_the_first_is_not_enough() -> None:
    rng, rows, fields, width = np.random.default_rng(0), 20_000, 4, 20_000
    columns = rng.zipf(1.3, (2 * rows, fields)) % width + np.arange(fields) * width
    starts = np.arange(0, columns.size + 1, fields)
    words = scipy.sparse.csr_array(
        (np.ones(columns.size, np.float32), columns.ravel(), starts), (2 * rows, fields * width)
    )
    weights = rng.normal(scale=0.6, size=fields * width)
    y = (rng.random(2 * rows) < 1 / (1 + np.exp(-(words @ weights)))).astype(int)
    train, test = slice(rows), slice(rows, None)
    losses = []
    for alpha in "auto", 1 / rows:
        model = dps.FMClassifier(4, alpha=alpha, batch_size=256, random_state=0)
        chances = model.fit(words[train], y[train]).predict_proba(words[test])
        losses.append(log_loss(y[test], chances))
    assert losses[0] < 0.993 * losses[1], losses
