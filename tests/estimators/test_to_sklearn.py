"""Exported scikit-learn models predict the same without dps, and become ONNX."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from versions import SKLEARN

import dps
from dps.losses import Huber, Quantile
from dps.preprocessing import FrameEncoder

RNG = np.random.default_rng(0)
ROWS = 400
X = RNG.normal(size=(ROWS, 5))
X[:, 1] = X[:, 1] * 20 + 2001  # years
X[:, 2] = RNG.integers(0, 4, ROWS)  # few values
X[:, 3] = 7.5  # a constant
X[:, 4] = np.exp(3 * X[:, 4])  # amounts, with outliers
Y = X[:, 0] + np.sin(3 * X[:, 0]) + X[:, 2] / 2
LABELS = {
    "two": np.array(["no", "yes"])[(Y > 0).astype(int)],
    "three": np.array(["a", "b", "c"], object)[(Y > 0).astype(int) + (Y > 1)],
    "bool": Y > 0,
    "whole": (Y > 0).astype(int) * 2 + (Y > 1) * 3,
}
METHODS = ("predict", "predict_proba", "decision_function")
FAR = X * RNG.normal(size=(ROWS, 1)) * 100  # where no row was


def classifier(units: Any, **options: Any) -> Any:
    return dps.MLPClassifier(hidden_layer_sizes=units, random_state=0, **options)


def regressor(units: Any, **options: Any) -> Any:
    return dps.MLPRegressor(hidden_layer_sizes=units, random_state=0, **options)


def same(model: Any, plain: Any, data: Any, rtol: float = 1e-9) -> None:
    check_is_fitted(plain)
    for method in METHODS:
        if hasattr(plain, method) and hasattr(model, method):
            actual, expected = getattr(plain, method)(data), getattr(model, method)(data)
            assert actual.shape == expected.shape
            if actual.dtype.kind == "f":
                most = np.abs(expected).max()
                np.testing.assert_allclose(actual, expected, rtol, atol=rtol * max(1.0, most))
            else:
                assert (actual == expected).all()


def checked(model: Any, data: Any, rtol: float = 1e-9) -> Any:
    plain = model.to_sklearn()
    same(model, plain, data, rtol)
    same(model, pickle.loads(pickle.dumps(plain)), data, rtol)
    assert type(clone(plain)) is type(plain)
    return plain


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("loss", ["log_loss", "hinge", "squared_hinge", "modified_huber"])
def test_a_linear_classifier_becomes_one_of_scikit_learn(loss: str, labels: str) -> None:
    y = LABELS[labels]
    model = dps.LinearClassifier(loss, max_iter=20, tol=0.1, random_state=0).fit(X, y)
    plain = checked(model, X)
    same(model, plain, FAR)
    same(model, plain, scipy.sparse.csr_array(X))
    assert type(plain).__name__ == ("LogisticRegression" if loss == "log_loss" else "SGDClassifier")
    assert plain.score(X, y) == model.score(X, y)


LOSSES = {
    "squared_error": "Ridge",
    "huber": "SGDRegressor",
    "epsilon_insensitive": "SGDRegressor",
    "quantile": "QuantileRegressor",
    "poisson": "PoissonRegressor",
    "gamma": "GammaRegressor",
}


@pytest.mark.parametrize("several", [False, True], ids=["vector", "columns"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_linear_regressor_becomes_one_of_scikit_learn(loss: str, several: bool) -> None:
    if loss in ("poisson", "gamma") and SKLEARN < (1, 7):
        pytest.skip("of scikit-learn 1.7")
    y = np.abs(Y) + 0.1 if loss in ("poisson", "gamma") else Y
    y = np.c_[y, y[::-1]] if several else y
    for kind in (np.float64, np.float32):
        data = X.astype(kind)
        model = dps.LinearRegressor(loss, max_iter=20, tol=0.1, random_state=0).fit(data, y)
        plain = checked(model, X)
        if several and loss != "squared_error":
            plain = plain.estimators_[0]
        assert type(plain).__name__ == LOSSES[loss]


def test_options_of_losses_and_names_of_columns_are_kept() -> None:
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = dps.LinearRegressor(Quantile(0.9), max_iter=50, tol=1.0, fit_intercept=False)
    plain = checked(model.fit(frame, Y), frame)
    assert (plain.quantile, plain.fit_intercept) == (0.9, False)
    assert list(plain.feature_names_in_) == list("abcde")
    huber = dps.LinearRegressor(Huber(0.3), max_iter=50, tol=1.0).fit(X, Y).to_sklearn()
    assert huber.epsilon == 0.3


@pytest.mark.parametrize("labels", LABELS)
def test_a_classifying_network_becomes_one_of_scikit_learn(labels: str) -> None:
    y = LABELS[labels]
    model = classifier((16, 8), max_iter=4).fit(X, y)
    plain = checked(model, X)
    same(model, plain, FAR)
    assert plain.score(X, y) == model.score(X, y)
    assert plain[-1].best_loss_ == model.best_loss_


@pytest.mark.parametrize("several", [False, True], ids=["vector", "columns"])
@pytest.mark.parametrize("loss", ["squared_error", "quantile", "poisson", "gamma"])
def test_a_network_of_numbers_becomes_one_of_scikit_learn(loss: str, several: bool) -> None:
    if loss in ("poisson", "gamma") and SKLEARN < (1, 7):
        pytest.skip("of scikit-learn 1.7")
    if loss in ("poisson", "gamma") and SKLEARN < (1, 7):
        pytest.skip("of scikit-learn 1.7")
    y = np.abs(Y) + 0.1 if loss in ("poisson", "gamma") else Y
    y = np.c_[y, y[::-1]] if several else y
    model = regressor(16, loss=loss, max_iter=4).fit(X, y)
    same(model, checked(model, X), FAR)


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
@pytest.mark.parametrize("hidden", [(), (6, 5)], ids=str)
def test_numbers_that_are_not_embedded_suit_any_activation(
    activation: str, hidden: tuple[int, ...]
) -> None:
    model = dps.MLPRegressor(
        hidden_layer_sizes=hidden,
        activation=activation,
        embedding_size=0,
        max_iter=3,
        random_state=0,
    )
    same(model, checked(model.fit(X, Y), X), FAR)


def test_a_network_that_has_seen_nothing_but_constants_says_the_same_of_all_rows() -> None:
    model = regressor(4, max_iter=2).fit(np.ones((ROWS, 2)), Y)
    same(model, checked(model, np.ones((5, 2))), X[:, :2])


def test_a_network_on_columns_with_names_keeps_them() -> None:
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = regressor(8, max_iter=2).fit(frame, Y)
    plain = checked(model, frame)
    assert list(plain.feature_names_in_) == list("abcde")


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_network_on_wide_sparse_rows_is_itself(activation: str) -> None:
    rows = scipy.sparse.random_array((ROWS, 2000), density=0.02, random_state=RNG, format="csr")
    rows.data -= 0.5
    model = dps.MLPClassifier(hidden_layer_sizes=8, activation=activation, max_iter=3).fit(
        rows, LABELS["three"]
    )
    plain = checked(model, rows)
    assert type(plain).__name__ == "MLPClassifier"
    same(model, plain, rows.toarray())


def test_a_network_on_narrow_sparse_rows_takes_dense_ones() -> None:
    rows = scipy.sparse.csr_array(np.where(X > 0, X, 0))
    model = classifier(8, max_iter=3).fit(rows, LABELS["three"])
    checked(model, rows.toarray())


FRAME = pd.DataFrame({"size": X[:, 0], "year": X[:, 1], "town": ["Ulm", "Bonn"] * (ROWS // 2)})


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "model",
    [
        dps.LinearClassifier(max_iter=20),
        classifier(8, max_iter=3),
        classifier(8, max_iter=3, embedding_size=0),
    ],
    ids=["linear", "network", "not embedded"],
)
def test_a_model_of_dataframes_becomes_a_pipeline_with_the_encoder(model: Any, dtype: str) -> None:
    encoder = FrameEncoder(dtype=dtype, n_buckets=4)  # scikit-learn has no such buckets
    model = clone(model).set_params(encoder=encoder, random_state=0).fit(FRAME, LABELS["two"])
    plain = checked(model, FRAME, 1e-9 if dtype == "float64" else 1e-3)
    assert type(plain[0]).__name__ == "FrameEncoder"
    before = model.predict(FRAME)
    plain[0].fit(FRAME.assign(town="Rom"))  # another encoder than the model's
    np.testing.assert_array_equal(model.predict(FRAME), before)


def frame_of_all_kinds(gaps: bool) -> Any:
    rng = np.random.default_rng(3)
    frame = FRAME.assign(
        hour=pd.Categorical(rng.integers(0, 5, ROWS)), ok=rng.random(ROWS) < 0.5,
        rooms=rng.integers(1, 6, ROWS),
    )  # fmt: skip
    if gaps:
        frame["size"] = frame["size"].where(rng.random(ROWS) < 0.8)
        frame["town"] = frame["town"].where(rng.random(ROWS) < 0.9)
        frame["hour"] = frame["hour"].where(rng.random(ROWS) < 0.9)
    return frame


@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
@pytest.mark.parametrize("kind", [dps.LinearClassifier, dps.MLPClassifier])
def test_an_encoder_of_numbers_and_categories_becomes_scikit_learns(kind: Any, gaps: bool) -> None:
    frame = frame_of_all_kinds(gaps)
    model = kind(max_iter=20, tol=0.1, random_state=0).fit(frame, LABELS["two"])
    plain = checked(model, frame, 1e-9)
    assert type(plain[0]).__name__ == "ColumnTransformer"
    columns = plain[0].transform(frame)
    columns = columns.toarray() if hasattr(columns, "toarray") else columns
    np.testing.assert_allclose(columns, model.encoder_.transform(frame).toarray(), rtol=1e-12)
    # What training has not seen is ignored, or missing.
    other = frame.assign(town="Rom", hour=9)[::-1]
    np.testing.assert_allclose(plain.predict_proba(other), model.predict_proba(other), atol=1e-9)


def test_gaps_of_an_array_are_scikit_learns_too() -> None:
    gaps = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
    for encoder, rows in (("auto", gaps), (FrameEncoder(missing="mean"), pd.DataFrame(gaps))):
        rows = rows.set_axis(list("abcdef"[: X.shape[1]]), axis=1) if rows is not gaps else gaps
        model = dps.LinearClassifier(encoder=encoder, random_state=0).fit(rows, LABELS["two"])
        plain = model.to_sklearn()
        np.testing.assert_allclose(plain.predict_proba(rows), model.predict_proba(rows), atol=1e-9)


def test_columns_that_scikit_learn_does_not_know_keep_the_encoder() -> None:
    dates = FRAME.assign(when=pd.Timestamp("2001-01-01"))[["town", "when"]]
    numbered = FRAME[["town", "size"]].set_axis([5, 6], axis=1)  # places in a ColumnTransformer
    for frame, encoder in ((dates, FrameEncoder(dates="parts")), (numbered, "auto")):
        model = dps.LinearClassifier(encoder=encoder, random_state=0).fit(frame, LABELS["two"])
        plain = checked(model, frame, 1e-6)
        assert type(plain[0]).__name__ == "FrameEncoder"


REFUSED = {
    "silu": (
        regressor(4, activation="silu", max_iter=1),
        "no activation='silu': use 'relu'",
    ),
    "tanh": (
        regressor(4, activation="tanh", max_iter=1),
        "embedded numbers.*use activation='relu'",
    ),
    "hinge": (
        classifier(4, loss="hinge", max_iter=1),
        "use loss='log_loss'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_scikit_learn_lacks_is_said(name: str) -> None:
    model, words = REFUSED[name]
    with pytest.raises(NotFittedError):
        model.to_sklearn()
    with pytest.raises(ValueError, match=words):
        clone(model).fit(X, LABELS["bool"]).to_sklearn()


def test_a_layer_of_too_many_weights_is_refused() -> None:
    encoder = FrameEncoder(n_buckets=1 << 14)
    model = classifier(2, max_iter=1, encoder=encoder).fit(FRAME, LABELS["two"])
    with pytest.raises(ValueError, match=r"16,386 columns.*encode with FrameEncoder"):
        model.to_sklearn()


def test_what_was_made_needs_no_dps(tmp_path: Path) -> None:
    models = [
        dps.LinearClassifier(max_iter=20),
        classifier(8, max_iter=2),
    ]
    for number, model in enumerate(models):
        model.fit(X, LABELS["two"])
        (tmp_path / f"{number}.pickle").write_bytes(pickle.dumps((model.to_sklearn(), X)))
    frame = frame_of_all_kinds(gaps=True)
    of_frame = dps.LinearClassifier(max_iter=20).fit(frame, LABELS["two"]).to_sklearn()
    (tmp_path / "frame.pickle").write_bytes(pickle.dumps((of_frame, frame)))
    code = (
        "import pickle, sys; sys.modules['dps'] = sys.modules['dask'] = None\n"
        "for name in sys.argv[1:]:\n"
        "    model, X = pickle.load(open(name, 'rb'))\n"
        "    model.predict(X)\n"
    )
    names = sorted(str(path) for path in tmp_path.iterdir())
    subprocess.run([sys.executable, "-c", code, *names], check=True, timeout=100)


ONNX = {
    "labels": (dps.LinearClassifier(max_iter=20), "three"),
    "hinge": (dps.LinearClassifier("hinge", max_iter=20, tol=0.1), "two"),
    "amounts": (dps.LinearRegressor("gamma", max_iter=20), "amounts"),
    "targets": (dps.LinearRegressor("huber", max_iter=20, tol=0.1), "targets"),
    "network of two": (classifier((16, 8), max_iter=4), "two"),
    "network of three": (classifier((16, 8), max_iter=4), "whole"),
    "network of numbers": (regressor((16, 8), max_iter=4), "numbers"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ONNX)
def test_what_was_made_becomes_onnx(name: str) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    runtime = pytest.importorskip("onnxruntime")
    model, target = ONNX[name]
    data = X.astype(np.float32)
    known = {"numbers": Y, "amounts": np.abs(Y) + 0.1, "targets": np.c_[Y, Y[::-1]], **LABELS}
    model = clone(model).set_params(random_state=0).fit(data.astype(np.float64), known[target])
    options = {"zipmap": False} if hasattr(model, "classes_") else None
    converted = skl2onnx.to_onnx(model.to_sklearn(), data[:1], options=options)
    session = runtime.InferenceSession(
        converted.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    first, *rest = session.run(None, {"X": data})
    if hasattr(model, "classes_"):
        assert (first == model.predict(data)).mean() > 0.99  # but for ties of rounding
        if hasattr(model, "predict_proba"):
            np.testing.assert_allclose(rest[0], model.predict_proba(data), atol=1e-4)
    else:
        expected = model.predict(data.astype(np.float64)).reshape(first.shape)
        np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", [dps.LinearClassifier, dps.MLPClassifier])
def test_a_frame_of_texts_and_gaps_becomes_onnx(kind: Any) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    runtime = pytest.importorskip("onnxruntime")
    frame = frame_of_all_kinds(gaps=True)[["size", "town", "hour"]]
    frame = frame.assign(town=frame["town"].fillna("none"), hour=frame["hour"].fillna(0))
    frame = frame.astype({"size": "f4", "hour": "int64"})
    coded = frame.assign(hour=frame["hour"].astype("category"))
    model = kind(max_iter=20, tol=0.1, random_state=0).fit(coded, LABELS["two"])
    converted = skl2onnx.to_onnx(model.to_sklearn(), frame[:1], options={"zipmap": False})
    session = runtime.InferenceSession(
        converted.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    given = {name: frame[[name]].to_numpy() for name in frame}
    given["town"] = given["town"].astype(object)
    _, found = session.run(None, given)
    np.testing.assert_allclose(found, model.predict_proba(coded), atol=1e-4)
