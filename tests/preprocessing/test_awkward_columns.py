"""Columns, labels and names of rare types: learned, saved, and predicted alike, or refused."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dps
from dps import FMClassifier, LinearClassifier, LinearRegressor
from dps.preprocessing import FrameEncoder

ROWS = 100
Y = np.arange(ROWS) % 2
X = np.random.default_rng(0).normal(size=(ROWS, 2))
MONTHS = pd.period_range("2024-01", periods=4, freq="M")[np.arange(ROWS) % 4]
# As errors="surrogateescape" reads it.
ODD_TEXT = pd.Series(["\udce9t\udce9", "tea"] * 50, dtype=object)


def objects(*labels: Any) -> Any:
    made = np.empty(ROWS, object)
    made[:] = [labels[k] for k in Y]
    return made


def named(*names: Any) -> pd.DataFrame:
    return pd.DataFrame({names[0]: X[:, 0], names[1]: ["u", "v"] * 50})


FRAMES: dict[str, Any] = {
    "periods": pd.DataFrame({"m": pd.Series(MONTHS).astype("category")}),
    "np.str_": pd.DataFrame({"s": pd.Series(objects(np.str_("p"), np.str_("q")), dtype=object)}),
    "named by times": named(pd.Timestamp("2024"), pd.Timestamp("2025", tz="Europe/Paris")),
    "named by intervals": named(pd.Interval(0, 1), pd.Interval(1, 2, closed="left")),
    "named by pairs": named(("a", 1), ("a", 2)),
    "named with a zero byte": named("n", "a\0"),
    "half a surrogate pair": pd.DataFrame({"s": ODD_TEXT}),
    "lists of them": pd.DataFrame({"s": [["\udce9t\udce9"], ["tea"]] * 50}),
}


@pytest.mark.parametrize(
    ("make", "name"),
    [*((LinearClassifier, name) for name in FRAMES), (FMClassifier, "half a surrogate pair")],
)
def test_what_is_learned_is_saved(make: Any, name: str, tmp_path: Path) -> None:
    frame = FRAMES[name]
    model = make(random_state=0).fit(frame, Y)
    model.save(tmp_path / "model")
    again = dps.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    if make is LinearClassifier:
        assert len(model.coefficients()) == model.coef_.size
        plain = model.to_sklearn()
        np.testing.assert_allclose(
            plain.predict_proba(frame), model.predict_proba(frame), rtol=1e-5
        )


LABELS: dict[str, Any] = {
    "np.str_": objects(np.str_("p"), np.str_("q")),
    "dates": objects(datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)),
    "times": objects(datetime.datetime(2024, 1, 1, 2, 3), datetime.datetime(2025, 1, 1)),
    "Timestamps": objects(pd.Timestamp("2024-01-01T02"), pd.Timestamp("2025-01-01")),
    "bytes": objects(b"\xff", b"b"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_are_saved(name: str, tmp_path: Path) -> None:
    model = LinearClassifier().fit(X, LABELS[name])
    model.save(tmp_path / "model")
    again = dps.load(tmp_path / "model")
    assert again.classes_.tolist() == model.classes_.tolist()
    assert again.predict(X).tolist() == model.predict(X).tolist()


@pytest.mark.parametrize(
    ("label", "kind"), [(pd.Period("2024-01"), "Period"), (Decimal(1), "Decimal"), ((1,), "tuple")]
)
def test_labels_that_no_file_holds_are_refused(label: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=f"y holds a label of the type {kind}, in row 0"):
        LinearClassifier().fit(X, objects(label, label))


def test_a_missing_date_is_named() -> None:
    y = np.where(Y == 1, np.datetime64("2024-01-01"), np.datetime64("NaT", "D"))
    with pytest.raises(ValueError, match="y holds a missing label, in row 0"):
        LinearClassifier().fit(X, y)


def test_text_that_is_none_falls_in_a_bucket() -> None:
    encoder = FrameEncoder(n_buckets=64)
    model = LinearClassifier(encoder=encoder).fit(pd.DataFrame({"s": ODD_TEXT}), Y)
    assert model.score(pd.DataFrame({"s": ODD_TEXT}), Y) == 1.0


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("dtype", ["Int64", "UInt64", "int64[pyarrow]"])
def test_large_integers_keep_their_digits_beside_a_gap(dtype: str, hashed: bool) -> None:
    first = 2**53
    ids = pd.Series([first, first + 1, first + 2, None] * 25, dtype=dtype)
    encoder = FrameEncoder(n_buckets=1 << 12, missing="indicator") if hashed else "auto"
    y = np.tile([0, 1, 0, 1], 25)
    frame = pd.DataFrame({"id": ids.astype("category")})
    model = LinearClassifier(alpha=1e-6, encoder=encoder).fit(frame, y)
    assert model.score(frame, y) == 1.0
    assert model.score(pd.DataFrame({"id": ids}), y) == 1.0  # not as categories


@pytest.mark.parametrize("unit", [1e-18, 1e-19, 1e-25, 1e-36, 1e18])
def test_units_of_float32_do_not_matter(unit: float) -> None:
    y, scaled = (X[:, 0] > 0).astype(int), (X * unit).astype(np.float32)
    assert LinearClassifier().fit(scaled, y).score(scaled, y) > 0.98
    assert LinearClassifier(optimizer="adagrad").fit(scaled, y).score(scaled, y) > 0.95
    assert LinearRegressor().fit(scaled, X[:, 0]).score(scaled, X[:, 0]) > 0.99
