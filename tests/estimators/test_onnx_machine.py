"""Factorization machines as ONNX predict what they do."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import dps

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning",
    "ignore::sklearn.exceptions.ConvergenceWarning",
)  # fmt: skip
RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 5))
X[:, 3] = X[:, 3] > 0
Y = X[:, 0] * X[:, 1] + X[:, 3]
WIDE = scipy.sparse.random_array((300, 40), density=0.1, random_state=RNG, format="csr")
FRAME = pd.DataFrame(
    {"size": X[:, 0].astype("f4"), "town": RNG.choice(["ulm", "bonn", "kiel"], 300)}
).assign(hour=pd.Series(RNG.integers(0, 24, 300)).astype("category"))
TARGETS = {
    "two": np.where(Y > 0, "high", "low"),
    "three": np.digitize(Y, [-0.5, 0.5]) * 5,
    "labels": np.c_[Y > 0, X[:, 0] > 0, X[:, 3] > 0].astype(int),
    "number": Y,
    "numbers": np.c_[Y, -Y, X[:, 0]],
    "amounts": np.exp(Y),
    "truth": Y > 0,
}
MACHINES: dict[str, tuple[str, dict[str, Any]]] = {
    "two": ("two", {}),
    "truth": ("truth", {"loss": "modified_huber"}),
    "scores": ("two", {"loss": "hinge"}),
    "three": ("three", {"normalize": True}),
    "labels": ("labels", {"n_factors": 3}),
    "number": ("number", {}),
    "numbers": ("numbers", {}),
    "amounts": ("amounts", {"loss": "poisson"}),
    "layers": ("two", {"hidden_layer_sizes": (8, 4)}),
    "silu": ("number", {"hidden_layer_sizes": (8,), "activation": "silu"}),
    "tanh": (
        "three",
        {"hidden_layer_sizes": (8,), "activation": "tanh", "fields": [0, 0, 1, 2, 1]},
    ),
}


def fitted(target: str, X: Any, **options: Any) -> Any:
    whole = {"number", "numbers", "amounts"}
    kind = dps.FMRegressor if target in whole else dps.FMClassifier
    return kind(max_iter=4, random_state=0, **options).fit(X, TARGETS[target])


def check(model: Any, X: Any, given: dict[str, Any], atol: float) -> None:
    session = runtime.InferenceSession(
        model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    single = {each.name for each in session.get_inputs() if each.type == "tensor(float)"}
    given = {name: v.astype(np.float32) if name in single else v for name, v in given.items()}
    atol = max(atol, 1e-5) if single else atol
    first, *rest = session.run(None, given)
    if not hasattr(model, "classes_"):
        np.testing.assert_allclose(first, model.predict(X).reshape(first.shape), atol=atol)
        return
    assert (first == model.predict(X)).mean() > 0.99  # but for ties of rounding
    if hasattr(model, "predict_proba"):
        expected = model.predict_proba(X)
    else:
        expected = model.decision_function(X).reshape(rest[0].shape)
    np.testing.assert_allclose(rest[0], expected, atol=atol)


@pytest.mark.parametrize("name", MACHINES)
def test_of_arrays(name: str) -> None:
    target, options = MACHINES[name]
    check(fitted(target, X, **options), X, {"X": X}, 1e-9)


def test_of_wide_sparse_rows() -> None:
    rows = WIDE.toarray().astype(np.float32)
    check(fitted("two", WIDE.astype(np.float32)), rows, {"X": rows}, 1e-5)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("options", [{}, {"hidden_layer_sizes": (8,)}])
def test_of_frames(options: dict[str, Any], gaps: bool) -> None:
    pytest.importorskip("skl2onnx")
    frame = FRAME.copy()
    if gaps:
        frame.loc[::7, "size"] = np.nan
    given = {
        "size": frame[["size"]].to_numpy(),
        "town": frame[["town"]].to_numpy().astype(object),
        "hour": frame[["hour"]].to_numpy().astype(np.int64),
    }
    check(fitted("two", frame, **options), frame, given, 1e-5)


def test_of_arrays_with_gaps() -> None:
    pytest.importorskip("skl2onnx")
    gaps = X.astype(np.float32)
    gaps[::5, 1] = np.nan
    check(fitted("number", gaps), gaps, {"X": gaps}, 1e-4)


def test_of_a_table_of_rows_that_have_come() -> None:
    model = dps.FMClassifier(max_embeddings=400, max_iter=4, random_state=0)
    model.fit(WIDE.astype(np.float32), TARGETS["two"])
    rows = WIDE.toarray().astype(np.float32)
    check(model, rows, {"X": rows}, 1e-5)


def test_the_package_that_it_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = dps.FMClassifier(max_iter=1).fit(np.eye(4), [0, 1, 0, 1])
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match="to_onnx needs onnx: pip install onnx skl2onnx"):
        machine.to_onnx()


def test_what_has_no_onnx_is_said() -> None:
    encoder = dps.preprocessing.FrameEncoder(n_buckets=4)
    hashed = dps.FMClassifier(max_iter=2, alpha=0.0, encoder=encoder)
    with pytest.raises(ValueError, match="buckets, infrequent categories, lists, dates in parts"):
        hashed.fit(FRAME, TARGETS["two"]).to_onnx()
    wide = scipy.sparse.csr_array((WIDE.data, WIDE.indices, WIDE.indptr), shape=(300, 1 << 24))
    long = dps.FMClassifier(max_iter=2, alpha=0.0, max_embeddings=400).fit(wide, TARGETS["two"])
    with pytest.raises(ValueError, match="rows of 17, and ONNX's rows are dense"):
        long.to_onnx()
