"""A saved model loads unchanged and continues, or is refused with a reason."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from inside import carry_of
from sklearn.base import clone

import dps
from dps.estimators.base import declare as registry
from dps.files import directories
from dps.losses import Huber, LogLoss, Quantile
from dps.optimizers import Adam, Cosine, Momentum
from dps.preprocessing import FrameEncoder

RNG = np.random.default_rng(0)
ROWS = 120
X = RNG.normal(size=(ROWS, 4))
Y = X[:, 0] - X[:, 1] ** 2
FRAME = pd.DataFrame(
    {
        "size": X[:, 0],
        "kind": pd.Categorical(list("xyz") * (ROWS // 3)),
        "level": pd.Categorical(RNG.integers(0, 5, ROWS)),
        "part": pd.Categorical(pd.cut(X[:, 1], 3)),
        "day": pd.Categorical(pd.date_range("2001-01-01", periods=4, tz="UTC").repeat(ROWS // 4)),
        "town": ["Ulm", "Köln"] * (ROWS // 2),
        "words": [["a", "b"], ["c"]] * (ROWS // 2),
        "gaps": np.where(X[:, 2] > 1, np.nan, X[:, 2]),
    }
)
LABELS = {
    "texts": np.array(["no", "yes", "what"]),
    "objects": np.array(["no", "yes", "what"], object),
    "bool": np.array([False, True]),
    "whole": np.array([-3, 0, 7], np.int16),
    "floats": np.array([1.0, 2.0]),
    "dates": np.array(["2001-01-01", "2002-02-02"], "datetime64[D]"),
}
SAVED = {
    "linear classifier": (dps.LinearClassifier(), X),
    "in float32": (dps.LinearClassifier(optimizer="adam", average=True), X.astype(np.float32)),
    "one against the rest": (dps.LinearClassifier(loss="hinge"), X),
    "sparse": (dps.LinearClassifier(), scipy.sparse.csr_array(np.where(X > 0, X, 0))),
    "linear regressor": (dps.LinearRegressor(optimizer="momentum", learning_rate=0.01), X),
    "counts": (dps.LinearRegressor(loss="poisson"), X),
    "classifying network": (dps.MLPClassifier(hidden_layer_sizes=16, max_iter=3), X),
    "network": (
        dps.MLPRegressor(hidden_layer_sizes=(8, 8), loss="huber", max_iter=3),
        X.astype(np.float32),
    ),
    "linear model of a frame": (
        dps.LinearRegressor(
            encoder=FrameEncoder(missing="indicator", interactions=[("kind", "town")], n_buckets=32)
        ),
        FRAME,
    ),
    "linear model of a frame with infrequent categories": (
        dps.LinearRegressor(encoder=FrameEncoder(missing="indicator", max_categories=2)),
        FRAME,
    ),
    "network of dates": (
        dps.MLPRegressor(hidden_layer_sizes=8, max_iter=2, encoder=FrameEncoder(dates="parts")),
        FRAME[["kind"]].assign(when=pd.date_range("2001-01-01", periods=ROWS, freq="7h")),
    ),
    "factorization machine": (dps.FMClassifier(n_factors=4, max_iter=3), X),
    "factorization machine of sparse rows in fields": (
        dps.FMRegressor(n_factors=3, hidden_layer_sizes=(4, 3), fields=[0, 1, 1, 2], max_iter=3),
        scipy.sparse.csr_array(np.where(X > 0, X, 0)),
    ),
    "factorization machine of a frame": (
        dps.FMClassifier(n_factors=4, max_iter=2, encoder=FrameEncoder(missing="mean")),
        FRAME,
    ),
    "network of a frame": (
        dps.MLPClassifier(hidden_layer_sizes=8, max_iter=2, encoder=FrameEncoder(missing="mean")),
        FRAME.drop(columns="words"),
    ),
}


def targets(model: Any) -> Any:
    if isinstance(model, dps.LinearClassifier | dps.MLPClassifier | dps.FMClassifier):
        return LABELS["texts"][(Y > 0).astype(int) + (Y > 1)]
    return np.abs(Y) if model.loss == "poisson" else Y


def same_state(one: Any, other: Any) -> bool:
    pairs = [
        (carry_of(one).params, carry_of(other).params),
        (carry_of(one).state, carry_of(other).state),
    ]
    return all(a.tobytes() == b.tobytes() and a.dtype == b.dtype for a, b in pairs)


@pytest.mark.parametrize("name", SAVED)
def test_a_loaded_estimator_predicts_and_carries_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, data = SAVED[name]
    model = clone(model).set_params(n_replicas=1, random_state=0)
    y = targets(model)
    model.fit(data, y)
    model.save(tmp_path / "model")
    loaded = dps.load(tmp_path / "model")
    assert type(loaded) is type(model)
    assert repr(loaded) == repr(model)
    assert repr([*loaded.history_]) == repr([*model.history_])
    assert (loaded.n_iter_, loaded.loss_) == (model.n_iter_, model.loss_)
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(model, method):
            expected = getattr(model, method)(data)
            actual = getattr(loaded, method)(data)
            assert actual.dtype == expected.dtype
            np.testing.assert_array_equal(actual, expected)
    for _ in range(2):
        model.partial_fit(data, y)
        loaded.partial_fit(data, y)
    assert same_state(loaded, model)
    loaded.save(tmp_path / "again")
    assert same_state(dps.load(tmp_path / "again"), model)


@pytest.mark.parametrize("name", LABELS)
def test_labels_of_any_type_come_back(name: str, tmp_path: Path) -> None:
    classes = LABELS[name]
    y = classes[RNG.integers(0, len(classes), ROWS)]
    model = dps.LinearClassifier().fit(X, y)
    model.save(tmp_path / "model")
    loaded = dps.load(tmp_path / "model")
    assert loaded.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_several_targets_and_names_of_columns_come_back(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=list("abcd"))
    for model in (dps.LinearRegressor(), dps.MLPRegressor(hidden_layer_sizes=8, max_iter=2)):
        model.fit(frame, np.c_[Y, X[:, 0]])
        model.save(tmp_path / "model")
        loaded = dps.load(tmp_path / "model")
        assert list(loaded.feature_names_in_) == list("abcd")
        np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))


def test_an_unfitted_estimator_comes_back_with_all_of_its_parameters(tmp_path: Path) -> None:
    random = np.random.RandomState(3)
    random.normal(size=5)
    model = dps.LinearClassifier(
        "modified_huber", class_weight={"a": 1.5, 2: np.float64(0.5), None: 3}, tol=None,
        optimizer=Adam(beta1=0.8, lazy=True), learning_rate=Cosine(0.1, 5.0, warmup=1.0),
        mode=dps.AllReduce(algorithm="ring"), encoder=FrameEncoder(8, dtype=np.float32),
        random_state=random, client="tcp://somewhere:8786",
    )  # fmt: skip
    model.save(tmp_path / "model")
    loaded = dps.load(str(tmp_path / "model"))
    given, expected = loaded.get_params(deep=False), model.get_params(deep=False)
    for name in ("class_weight", "optimizer", "learning_rate", "mode", "loss", "tol"):
        assert given[name] == expected[name]
    assert given["client"] is None
    assert repr(given["encoder"].get_params()) == repr(
        {**expected["encoder"].get_params(), "dtype": np.dtype("f4")}
    )
    assert loaded.random_state.normal() == random.normal()
    assert not hasattr(loaded, "coef_")
    for regressor in (
        dps.LinearRegressor(Quantile(0.9)),
        dps.MLPRegressor(hidden_layer_sizes=(5, 3), optimizer=Momentum(momentum=0.5)),
    ):
        regressor.save(tmp_path / "other")
        assert repr(dps.load(tmp_path / "other")) == repr(regressor)


@pytest.mark.parametrize(
    "encoder",
    [
        FrameEncoder(lists=2), FrameEncoder(16, shared=True, dtype="float64"),
        FrameEncoder(missing="mean", max_categories=2, logarithms=["size"]),
        FrameEncoder(interactions=[("kind", "town")], n_buckets=32),
    ],
    ids=["exact", "shared", "logarithms", "interactions"],
)  # fmt: skip
def test_an_encoder_comes_back_alone(encoder: FrameEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path / "encoder")
    assert repr(dps.load(tmp_path / "encoder")) == repr(encoder)
    expected = encoder.fit_transform(FRAME)
    encoder.save(tmp_path / "encoder")
    loaded = dps.load(tmp_path / "encoder")
    assert isinstance(loaded, FrameEncoder)
    assert (loaded.transform(FRAME[::-1][[*FRAME][::-1]]) != expected[::-1]).nnz == 0
    assert loaded.get_feature_names_out().tolist() == encoder.get_feature_names_out().tolist()
    np.testing.assert_array_equal(loaded.feature_names_in_, encoder.feature_names_in_)
    with pytest.raises(TypeError, match=r"saved without \['model'\]"):
        dps.load(tmp_path / "encoder", model=object())
    content, arrays = directories.read_directory(tmp_path / "encoder")
    for broken, message in (
        ({"encoder": 3}, "it has no encoder"),
        ({"encoder": {**content["encoder"], "layout": 3}}, "the layout of the encoder is 3"),
        ({**content, "more": 1}, "it has no"),
    ):
        directories.write_directory(tmp_path / "broken", broken, arrays)
        with pytest.raises(ValueError, match=message):
            dps.load(tmp_path / "broken")


@dataclass(frozen=True)
class Mine(Huber):
    """A loss that is code of the user's."""


class Own(dps.LinearClassifier):
    """A class of the user's."""


def test_what_cannot_be_written_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with pytest.raises(TypeError, match=r"LinearRegressor cannot be saved with loss=Mine\("):
        dps.LinearRegressor(Mine()).save(path)
    with pytest.raises(TypeError, match="class_weight="):
        dps.LinearClassifier(class_weight=abs).save(path)
    with pytest.raises(TypeError, match="Own cannot be saved"):
        Own().save(path)
    fitted = dps.LinearRegressor(Mine()).fit(X, Y).set_params(loss="huber")
    with pytest.raises(TypeError, match=r"_carry.model.loss is Mine"):
        fitted.save(path)
    assert not path.exists()


def test_an_estimator_of_ones_own_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ESTIMATORS", dict(registry.ESTIMATORS))

    def made(name: str) -> Any:
        return registry.estimator()(type(name, (dps.LinearClassifier,), {"__module__": __name__}))

    with pytest.raises(ValueError, match="linear has a LinearClassifier: use another name"):
        made("LinearClassifier")
    assert made("Mine") is not made("Mine")  # as in a notebook's cell that is run once more
    assert made("Mine")(alpha=2.0).get_params()["alpha"] == 2.0


def test_a_directory_of_memory_and_one_with_a_protocol_will_do(tmp_path: Path) -> None:
    model = dps.LinearRegressor().fit(X, Y)
    for path in ("memory://saved/model", f"file://{tmp_path}/model", f"{tmp_path}/slash/"):
        model.save(path)
        model.save(path)
        np.testing.assert_array_equal(dps.load(path).coef_, model.coef_)


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_an_archive_is_no_place_for_a_model(tmp_path: Path) -> None:
    path = f"zip://model::{tmp_path}/model.zip"
    model = dps.LinearClassifier(max_iter=2, checkpoint=dps.Checkpoint(path))
    for call in (lambda: model.save(path), lambda: dps.load(path), lambda: model.fit(X, Y > 0)):
        with pytest.raises(FileNotFoundError, match=r"in an archive that .* save into a directory"):
            call()


def test_a_save_takes_the_place_of_an_older_one_and_of_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model"
    dps.LinearRegressor().fit(X, Y).save(path)
    before = files(path)
    dps.LinearRegressor().fit(X, -Y).save(path)
    assert len(before) == len(files(path)) == 2
    assert before != files(path)
    (path / "thesis.tex").touch()
    with pytest.raises(FileExistsError, match=r"thesis\.tex.*give a new path"):
        dps.LinearRegressor().save(path)
    with pytest.raises(FileExistsError, match="is a file"):
        dps.LinearRegressor().save(path / "thesis.tex")


@pytest.mark.parametrize("survives", ["nothing", "arrays"])
def test_a_crash_leaves_what_was_there(
    survives: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    first, second = dps.LinearRegressor().fit(X, Y), dps.LinearRegressor().fit(X, -Y)
    whole = directories._replace

    def crash(beside: str, place: str) -> None:
        if survives == "nothing" or place.endswith(".json"):
            raise OSError("no space left on device")
        whole(beside, place)

    for old in (False, True):
        if old:
            first.save(path)
        with monkeypatch.context() as patch:
            patch.setattr(directories, "_replace", crash)
            with pytest.raises(OSError, match="no space"):
                second.save(path)
        assert not [name for name in files(path) if name.startswith(".")]
        if old:
            np.testing.assert_array_equal(dps.load(path).coef_, first.coef_)
        else:
            with pytest.raises(FileNotFoundError, match=r"has no manifest\.json; .*save it again"):
                dps.load(path)
    second.save(path)
    assert len(files(path)) == 2
    np.testing.assert_array_equal(dps.load(path).coef_, second.coef_)


def test_nothing_and_half_of_it_are_said_to_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with pytest.raises(FileNotFoundError, match=r"model does not exist"):
        dps.load(path)
    dps.LinearRegressor().save(path)
    next(path.glob("*.safetensors")).unlink()
    with pytest.raises(FileNotFoundError, match=r"has no arrays-.*copy the directory whole"):
        dps.load(path)


def test_who_does_not_save_does_not_wait_for_the_import() -> None:
    code = "import sys, dps; print('safetensors' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_logarithm_of_a_loss_given_as_an_object_comes_back(tmp_path: Path) -> None:
    model = dps.LinearClassifier(LogLoss()).fit(X, Y > 0)
    model.save(tmp_path / "model")
    loaded = dps.load(tmp_path / "model")
    assert loaded.loss == LogLoss()
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_random_states_and_arrays_in_a_dict_come_back(tmp_path: Path) -> None:
    model = dps.MLPRegressor(hidden_layer_sizes=8, max_iter=2, n_replicas=1)
    model.set_params(random_state=np.random.RandomState(3)).fit(X, Y)
    model.save(tmp_path / "model")
    loaded = dps.load(tmp_path / "model")
    assert loaded.random_state.randint(1 << 30) == model.random_state.randint(1 << 30)
    weights = {np.datetime64("2001-01-01"): 1.0, np.datetime64("2002-02-02"): 2.0}
    by_date = dps.LinearClassifier(class_weight=weights)
    by_date.save(tmp_path / "dates")
    assert dps.load(tmp_path / "dates").class_weight == weights


def test_time_zones_are_those_of_the_system_and_no_files(tmp_path: Path) -> None:
    from dateutil.tz import gettz

    for zone, known in (("Europe/Berlin", True), ("UTC", True), (gettz("Europe/Berlin"), False)):
        when = pd.date_range("2001-01-01", periods=ROWS, freq="7D", tz=zone).astype("category")
        model = dps.LinearRegressor().fit(pd.DataFrame({"when": when}), Y)
        if known:
            model.save(tmp_path / "model")
            loaded = dps.load(tmp_path / "model")
            np.testing.assert_array_equal(
                loaded.predict(pd.DataFrame({"when": when})),
                model.predict(pd.DataFrame({"when": when})),
            )
        else:
            with pytest.raises(TypeError, match="give one of zoneinfo"):
                model.save(tmp_path / "other")
