"""Models of one's own over several arrays of the same rows: a dict or a tuple of them."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import dps
from dps.models import check

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(400, 4, 3)).astype(np.float32)
WORDS = RNG.integers(0, 5, size=(400, 2))
AGE = RNG.normal(size=400).astype(np.float32)
Y = IMAGES.sum(axis=(1, 2)) + (WORDS == 3).sum(axis=1) + AGE
NAMED = {"words": WORDS, "image": IMAGES, "age": AGE}
OPTIONS: dict[str, Any] = {"random_state": 0, "max_iter": 20, "learning_rate": 0.05}


class Sum:
    """Images, words and ages, each with weights of its own."""

    def __init__(self, sizes: Any, n_outputs: int) -> None:
        self.sizes = sizes
        self.layout = {"pixels": (4, 3), "of_word": (5, 1), "of_age": (1,)}

    def init(self, rng: Any) -> Any:
        return dict.fromkeys(self.layout, 0.0)

    def raw(self, params: Any, batch: Any) -> Any:
        image, words, age = self.seen(batch)
        of_words = params["of_word"][words, 0].sum(axis=1)
        return (image * params["pixels"]).sum(axis=(1, 2)) + of_words + age * params["of_age"]

    def loss_gradient(self, params: Any, batch: Any, out: Any) -> Any:
        image, words, age = self.seen(batch)
        residual = self.raw(params, batch) - batch.y
        slope = batch.weighted(residual)
        out["pixels"] += np.tensordot(slope, image, 1)
        np.add.at(out["of_word"][:, 0], words, slope[:, None])
        out["of_age"] += slope @ age
        return (slope * residual).sum() / 2

    def seen(self, batch: Any) -> Any:
        X = batch.X
        found = (X["image"], X["words"], X["age"]) if isinstance(X, dict) else X
        kinds = [each.dtype.kind for each in found]
        assert (kinds, *(each.shape[1:] for each in found)) == (["f", "i", "f"], (4, 3), (2,), ())
        return found


def in_dask(X: Any) -> Any:
    if isinstance(X, dict):
        return {
            name: da.from_array(
                each, chunks=(100 if name == "image" else 150, *[1] * (each.ndim - 1))
            )
            for name, each in X.items()
        }
    return tuple(map(da.asarray, X))


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_they_train_and_predict(kind: str, client: Any, tmp_path: Any) -> None:
    X = NAMED if kind == "dict" else (IMAGES, WORDS, AGE)
    model = dps.ModelRegressor(Sum, **OPTIONS).fit(X, Y, X_val=X, y_val=Y)
    assert model.score(X, Y) > 0.95
    assert_allclose(model.history_[-1]["validation_loss"], model.history_[-1]["loss"], rtol=0.2)
    sizes = {"age": (), "image": (4, 3), "words": 2} if kind == "dict" else ((4, 3), 2, ())
    assert model.model_.sizes == sizes
    expected = model.predict(X)
    model.save(tmp_path / "m")
    assert_array_equal(dps.load(tmp_path / "m", model=Sum).predict(X), expected)
    lazy = model.predict(in_dask(X))
    assert_allclose(lazy.compute(), expected, rtol=1e-5)
    there = dps.ModelRegressor(Sum, client=client, **OPTIONS).fit(in_dask(X), Y)
    assert there.score(X, Y) > 0.95


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_a_module_is_called_with_them(kind: str) -> None:
    torch = pytest.importorskip("torch")
    from dps.torch import TorchClassifier

    class Two(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, sizes: Any, n_classes: int) -> None:
            super().__init__()
            assert sizes == ((4, 3), 2, ()) or sizes == {"age": (), "image": (4, 3), "words": 2}
            self.flat = torch.nn.Linear(13, 8)
            self.table = torch.nn.Embedding(5, 8)
            self.last = torch.nn.Linear(8, n_classes)

        def forward(self, image: Any, words: Any, age: Any) -> Any:
            assert image.shape[1:] == (4, 3)
            numbers = torch.cat([image.flatten(1), age[:, None]], dim=1)
            return self.last(torch.relu(self.flat(numbers) + self.table(words).sum(dim=1)))

    X = NAMED if kind == "dict" else (IMAGES, WORDS, AGE)
    labels = np.where(np.median(Y) < Y, "high", "low")
    model = TorchClassifier(Two, **{**OPTIONS, "tol": None}).fit(X, labels)
    assert model.score(X, labels) > 0.9
    assert model.module_.flat.weight.dtype == torch.float32


LARGE = np.full(400, (1 << 24) + 1)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ({}, "empty dict"),
        ({"a": IMAGES, "b": AGE[:7]}, r"different numbers of rows: \{'a': 400, 'b': 7\}"),
        ({"a": [[1.0]] * 400}, r"X\['a'\] is a list: .* must be an array"),
        ((IMAGES, np.array(["x"] * 400)), r"X\[1\] holds <U1, which are no numbers"),
        ((IMAGES, LARGE), r"X\[1\] holds 16777217, and the other inputs are float32"),
    ],
)
def test_what_cannot_be_put_together_is_said(X: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        dps.ModelRegressor(Sum, **OPTIONS).fit(X, Y)


def test_others_than_those_of_the_fit_are_refused() -> None:
    model = dps.ModelRegressor(Sum, **OPTIONS)
    with pytest.raises(ValueError, match="expecting"):
        model.fit(NAMED, Y, X_val={**NAMED, "words": WORDS[:, :1]}, y_val=Y)
    model.fit(NAMED, Y)
    for other in ((IMAGES, WORDS, AGE), {**NAMED, "more": AGE}, IMAGES):
        with pytest.raises(ValueError, match=r"X has rows of the shape .* is expecting \{'age'"):
            model.predict(other)
    with pytest.raises(ValueError, match="cannot start from the last one"):
        model.set_params(warm_start=True).fit((IMAGES, WORDS, AGE), Y)
    by_columns = dps.ModelRegressor(type("Columns", (Sum,), {"takes": "columns"}))
    with pytest.raises(ValueError, match="takes 'columns'"):
        by_columns.fit(NAMED, Y)


def test_a_model_of_several_arrays_is_checked() -> None:
    check(Sum(None, 1), NAMED, Y)
    check(Sum(None, 1), (IMAGES, WORDS, AGE), Y)
