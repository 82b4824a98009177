"""No byte of a saved estimator is believed: damaged and forged files are refused in words."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from own_models import ByName
from safetensors.numpy import load as load_arrays, save as save_arrays

import dps

ROWS = 120
X = np.random.default_rng(0).normal(size=(ROWS, 2))
FRAME = pd.DataFrame(
    {
        "size": X[:, 0],
        "kind": pd.Categorical(list("xyz") * (ROWS // 3)),
        "town": ["Ulm", "Köln"] * (ROWS // 2),
        "rest": X[:, 1],
    }
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of a frame: it has everything."""
    path = tmp_path_factory.mktemp("saved") / "model"
    labels = np.array(["no", "yes", "what"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 1)]
    model = dps.MLPClassifier(hidden_layer_sizes=8, max_iter=2, n_replicas=1, random_state=0)
    model.fit(FRAME, labels).save(path)
    return path


@pytest.mark.parametrize("pattern", ["*.json", "*.safetensors"])
def test_no_flipped_bit_and_no_cut_passes(pattern: str, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(saved, path)
    file = next(path.glob(pattern))
    whole = file.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(whole), 150):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        if whole[at : at + 1].isspace() and damaged[at : at + 1].isspace():
            continue
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=str(path)):
            dps.load(path)
    for length in (0, 5, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=str(path)):
            dps.load(path)
    file.write_bytes(whole)
    assert dps.load(path).n_iter_ == 2


def forge(path: Path, change: Callable[[Any, dict[str, Any]], Any]) -> None:
    """Change what was saved, with digests that fit."""
    place = path / "manifest.json"
    manifest = json.loads(place.read_text())
    old = next(path.glob("*.safetensors"))
    arrays = load_arrays(old.read_bytes())
    change(manifest["content"], arrays)
    data = save_arrays(arrays)
    old.unlink()
    digest = sha256(data).hexdigest()
    (path / f"arrays-{digest[:16]}.safetensors").write_bytes(data)
    manifest["arrays"] = {"sha256": digest, "bytes": len(data)}
    del manifest["sha256"]
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    place.write_text(json.dumps({**manifest, "sha256": sha256(text.encode()).hexdigest()}))


def put(value: Any, *keys: Any) -> Callable[[Any, dict[str, Any]], None]:
    """A function that sets a value somewhere in the manifest."""

    def change(content: Any, arrays: dict[str, Any]) -> None:
        *way, last = keys
        for key in way:
            content = content[key]
        content[last] = value

    return change


def array(name: str, change: Callable[[Any], Any]) -> Callable[[Any, dict[str, Any]], None]:
    """A function that changes an array and its entry in the manifest."""

    def apply(content: Any, arrays: dict[str, Any]) -> None:
        arrays[name] = np.ascontiguousarray(change(arrays[name]))
        given = {"dtype": arrays[name].dtype.str, "shape": [*arrays[name].shape]}
        _records(content)[name].update(given)

    return apply


def _records(value: Any) -> dict[str, Any]:
    found = {}
    if isinstance(value, dict):
        if value.get("kind") == "array":
            found[value["name"]] = value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            found |= _records(each)
    return found


NET, CARRY = ("fitted", "_model"), ("fitted", "_carry")
LAYOUT = ("fitted", "encoder_", "layout")
FEATURES = (*LAYOUT, "features", "items")
FORGED: dict[str, tuple[Callable[[Any, dict[str, Any]], Any], str]] = {
    "a class of another package": (put("sklearn.svm.SVC", "class"), "it is a 'sklearn.svm.SVC'"),
    "no class": (put(["os", "system"], "class"), "it is a"),
    "another class": (put("LinearRegressor", "class"), "does not know"),
    "a parameter of a newer one": (put(1, "parameters", "speed"), "'speed'"),
    "an attribute of a newer one": (put(1, "fitted", "speed_"), "'speed_'"),
    "an attribute less": (lambda c, _: c["fitted"].pop("n_iter_"), "n_iter_"),
    "a kind that is none": (put({"kind": "eval", "is": "1"}, "parameters", "tol"), "'eval'"),
    "no kind": (put({"is": "1"}, "parameters", "tol"), "no kind"),
    "no number": (put({"kind": "float", "is": "__import__"}, "parameters", "tol"), "no such"),
    "a loss without sense": (put("loss", "parameters", "loss"), "must be a Loss"),
    "fields of another": (
        put({"kind": "optimizer:adam", "rate": 1}, "parameters", "optimizer"), "beta1",
    ),
    "an optimizer out of range": (
        put({"kind": "optimizer:momentum", "momentum": 7, "nesterov": False},
            "parameters", "optimizer"), "momentum",
    ),
    "an array of objects": (put("|O", "fitted", "_params", "dtype"), "dtype"),
    "an array of records": (put("i4,O", "fitted", "_params", "dtype"), "dtype"),
    "an array elsewhere": (put("../../etc/passwd", "fitted", "_params", "name"), "not in the file"),
    "another shape": (put([1, 1], "fitted", "_params", "shape"), "shape"),
    "a huge shape": (put([1 << 60], "fitted", "_params", "shape"), "shape"),
    "a dtype that does not fit": (
        lambda _, arrays: arrays.update(_params=arrays["_params"].astype("f8")), "float64",
    ),
    "an array more": (lambda _, arrays: arrays.update(more=np.ones(2)), "belong to nothing"),
    "parameters of another dtype": (array("_params", lambda a: a.astype("f8")), "_params"),
    "parameters of whole numbers": (array("_params", lambda a: a.astype("i4")), "no array of"),
    "too few parameters": (array("_params", lambda a: a[:-1]), "_params"),
    "a state too short": (array("_carry.state", lambda a: a[:, 1:]), "state"),
    "a state without an optimizer": (put(None, *CARRY, "optimizer"), "optimizer"),
    "a version below zero": (put(-1, *CARRY, "version"), "version"),
    "another model": (put(None, *CARRY, "model"), "_carry"),
    "a network of other layers": (put([1 << 40], *NET, "hidden", "items"), "_params"),
    "a network with a layer of nothing": (put([0], *NET, "hidden", "items"), "hidden"),
    "more outputs": (put(9, *NET, "n_outputs"), "shape"),
    "an activation that is none": (put("exec", *NET, "activation"), "activation"),
    "places outside": (array("_model.inputs.places", lambda a: a + 1000), "places"),
    "places twice": (array("_model.inputs.places", lambda a: a * 0), "places"),
    "fewer places": (array("_model.inputs.places", lambda a: a[:-1]), "places|_model"),
    "edges that descend": (array("_model.inputs.edges.0", lambda a: a[::-1]), "ascending"),
    "edges of nothing": (array("_model.inputs.edges.0", lambda a: a[:0]), "edges"),
    "a spread less": (array("_model.inputs.spread", lambda a: a[:-1]), "spread"),
    "a width below zero": (put(-8, *NET, "inputs", "width"), "width"),
    "a number out of its place": (put(77, *FEATURES, 0, "place"), "order"),
    "buckets without end": (
        put({"kind": "feature:hashed", "name": "town", "n_buckets": 1 << 40, "indicator": False},
            *FEATURES, 2), "n_buckets",
    ),
    "shared buckets of other numbers": (
        put({"kind": "feature:shared", "n_buckets": 3, "members": {"kind": "tuple", "items": [
            {"kind": "feature:hashed", "name": "town", "n_buckets": 9, "indicator": False}]}},
            *FEATURES, 2), "share 3 buckets",
    ),
    "infrequent categories that are none": (put([], *FEATURES, 1, "infrequent"), "no index"),
    "unknown categories that become nothing": (put("exec", *FEATURES, 1, "unknown"), "unknown"),
    "a feature of no column": (put("elsewhere", *FEATURES, 1, "name"), "columns"),
    "a feature that is none": (put(5, *FEATURES, 1), "something else"),
    "a layout of another width": (lambda c, _: c["fitted"]["encoder_"]["layout"]["features"][
        "items"].append({"kind": "feature:cross", "n_buckets": 3, "members": {
            "kind": "tuple", "items": ["kind", "town"]}}), "_model"),
    "an encoder without a layout": (put(None, *LAYOUT), "encoder_"),
    "other names": (put("elsewhere", "fitted", "feature_names_in_", "items", 1), "feature_names"),
    "other columns": (put(3, "fitted", "n_features_in_"), "n_features_in_|encoder_"),
    "classes out of order": (array("classes_", lambda a: a[::-1]), "classes_"),
    "characters that are none": (lambda _, a: a["classes_"].fill(1 << 30), "text"),
    "a history of another length": (put(9, "fitted", "n_iter_"), "history_"),
    "random numbers from beyond the keys": (
        lambda c, arrays: (
            arrays.update(keys=np.arange(624, dtype=np.uint32)),
            put({"kind": "RandomState", "of": ["MT19937", {
                "kind": "array", "name": "keys", "dtype": "<u4", "shape": [624],
            }, 10**9, 0, 0.0]}, "parameters", "random_state")(c, arrays),
        ), "no state of random numbers",
    ),
    "replicas below zero": (array("history_.n_replicas", lambda a: -a), "rows_per_replica"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file_is_refused_in_words(name: str, saved: Path, tmp_path: Path) -> None:
    change, words = FORGED[name]
    path = tmp_path / "model"
    shutil.copytree(saved, path)
    forge(path, change)
    with pytest.raises(ValueError, match=words) as caught:
        dps.load(path)
    assert str(path) in str(caught.value)


SHAPE = (*CARRY, "model", "shape")
COLUMNS = (*SHAPE, "columns", "columns", "items")
FORGED_OWN: dict[str, tuple[Callable[[Any, dict[str, Any]], Any], str]] = {
    "more code": (put("x", "given", "loss"), "give loss again"),
    "code as a parameter": (put("x", "parameters", "model"), "model"),
    "another class": (put("LinearRegressor", "class"), "other code"),
    "other tensors": (put([["kind", [4], 1]], *CARRY, "model", "tensors"), "other tensors"),
    "outputs without end": (put(1 << 61, *SHAPE, "n_outputs"), "n_outputs"),
    "no columns": (put(None, *SHAPE, "columns"), "makes no model"),
    "a column that overlaps": (put(0, *COLUMNS, 1, "start"), "begins at"),
    "a column of another kind": (put("eval", *COLUMNS, 1, "holds"), "'eval'"),
    "a wider column": (put(9, *COLUMNS, 2, "width"), "begins at"),
    "a column less": (lambda c, _: c["fitted"]["_carry"]["model"]["shape"]["columns"]["columns"][
        "items"].pop(), "features"),
    "a classifier": (put(True, *SHAPE, "classification"), "_carry"),
    "too few parameters": (array("_params", lambda a: a[:-1]), "_params"),
    "another model": (put(None, *CARRY, "model"), "_carry"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED_OWN)
def test_a_forged_file_of_a_model_of_ones_own_is_refused_too(name: str, tmp_path: Path) -> None:
    change, words = FORGED_OWN[name]
    path = tmp_path / "model"
    options: dict[str, Any] = {"max_iter": 1, "tol": None, "n_replicas": 1, "random_state": 0}
    model = dps.ModelRegressor(ByName, **options)
    model.fit(FRAME, X[:, 0]).save(path)
    assert dps.load(path, model=ByName).n_iter_ == 1
    forge(path, change)
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        dps.load(path, model=ByName)
    assert str(path) in str(caught.value)


def test_a_file_of_another_version_or_of_others_says_so(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(saved, path)
    manifest = json.loads((path / "manifest.json").read_text())
    for change, words in (({"version": 2}, "of version 2"), ({"format": "x"}, "not saved by dps")):
        (path / "manifest.json").write_text(json.dumps({**manifest, **change}))
        with pytest.raises(ValueError, match=words):
            dps.load(path)
    (path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="no JSON"):
        dps.load(path)


MACHINE = ("fitted", "_model")
FORGED_MACHINES: dict[str, tuple[Callable[[Any, dict[str, Any]], Any], str]] = {
    "places outside": (array("_model.inputs.places", lambda a: a + 1000), "places"),
    "places twice": (array("_model.inputs.places", lambda a: a * 0), "places"),
    "fewer places": (array("_model.inputs.places", lambda a: a[:-1]), "places"),
    "fields below zero": (array("_model.inputs.fields", lambda a: a - 1), "fields"),
    "a field beyond the columns": (array("_model.inputs.fields", lambda a: a + 99), "fields"),
    "knots that descend": (array("_model.inputs.knots.0", lambda a: a[::-1]), "ascending"),
    "no knots": (array("_model.inputs.knots.0", lambda a: a[:0]), "knots"),
    "no gain": (put(-1.0, *MACHINE, "inputs", "gain"), "gain"),
    "a length that is none": (put(3, *MACHINE, "inputs", "normalised"), "normalised"),
    "more columns": (put(99, *MACHINE, "inputs", "n_features"), "places"),
    "more factors": (put(1 << 40, *MACHINE, "n_factors"), "_params"),
    "no factors": (put(0, *MACHINE, "n_factors"), "n_factors"),
    "other layers": (put([9], *MACHINE, "hidden", "items"), "_params"),
    "a network": (put("model:network", *MACHINE, "kind"), "inputs"),
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "machine"
    model = dps.FMClassifier(4, (3,), max_iter=2, n_replicas=1, random_state=0)
    model.fit(FRAME, X[:, 0] > 0).save(path)
    return path


@pytest.mark.parametrize("name", FORGED_MACHINES)
def test_a_forged_machine_is_refused_in_words(name: str, machine: Path, tmp_path: Path) -> None:
    change, words = FORGED_MACHINES[name]
    path = tmp_path / "model"
    shutil.copytree(machine, path)
    forge(path, change)
    with pytest.raises(ValueError, match=words) as caught:
        dps.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("pattern", ["*.json", "*.safetensors"])
def test_a_file_that_is_far_too_long_is_not_read(pattern: str, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(saved, path)
    file = next(path.glob(pattern))
    os.truncate(file, 1 << 36)  # more than there is memory for
    with pytest.raises(ValueError, match=rf"damaged, {file.name} has 68719476736 bytes"):
        dps.load(path)


FORGED_FACTS: list[tuple[str, Any]] = [
    *(("parameters", facts) for facts in ([], ["alone"], 5, [["a", "b", "c"]])),
    *(("strength", strength) for strength in (5, [], [0.0, True, []], ["1", True, []])),
    *(("strength", [1.0, True, tried]) for tried in ([1.0], [[1.0, 2.0]], [[-1.0, 2.0, True]])),
]


@pytest.mark.parametrize(("name", "facts"), FORGED_FACTS)
def test_a_checkpoint_whose_facts_are_none_is_refused(
    name: str, facts: Any, tmp_path: Path
) -> None:
    def model(**options: Any) -> dps.LinearClassifier:
        made = dps.LinearClassifier(
            optimizer="sgd", max_iter=2, tol=None, random_state=0, n_replicas=1, **options
        )
        return made.set_params(checkpoint=dps.Checkpoint(tmp_path))

    y = (X[:, 0] > 0).astype(int)
    model().fit(X, y)

    def change(content: Any) -> None:
        items = content["subject"]["items"]
        if name == "parameters":
            dict(items)[name]["items"][0][1] = facts
        else:
            next(item for item in items if item[0] == name)[1] = facts

    (path,) = (each for each in tmp_path.iterdir() if each.is_dir())
    place = path / "manifest.json"
    manifest = json.loads(place.read_text())
    change(manifest["content"])
    del manifest["sha256"]
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    place.write_text(json.dumps({**manifest, "sha256": sha256(text.encode()).hexdigest()}))
    with pytest.raises(ValueError, match="is damaged"):
        model().fit(X, y, resume=True)
