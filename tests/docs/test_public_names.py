"""The public names: what `dir` shows of the package, its public modules, and its objects."""

from __future__ import annotations

import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from own_models import Line, Softmax
from versions import SKLEARN

import dps
from dps import losses, modes, optimizers
from dps.losses.names import names_of

#: Public modules; `dps.torch` needs PyTorch.
MODULES = {
    "dps": """
        AllReduce Async Checkpoint EmbeddingTable FMClassifier FMRegressor Hybrid LinearClassifier
        LinearRegressor MLPClassifier MLPRegressor ModelClassifier ModelRegressor ParameterServer
        ServedModel Sync __version__ errors load losses metrics model_selection models optimizers
        preprocessing torch
    """,
    "dps.errors": """
        ClusterError DPSError FencedError NonFiniteError ReplicaError ServerLostError StalledError
        StoppedError TableFullError UnknownOutcomeError VersionError WindowError WorkerLostError
    """,
    "dps.losses": """
        EpsilonInsensitive Gamma Hinge Huber LogLoss Loss ModifiedHuber Poisson Quantile
        SquaredError SquaredHinge
    """,
    "dps.metrics": """
        RowScore accuracy_score average_precision_score balanced_accuracy_score brier_score_loss
        classification_report confusion_matrix d2_absolute_error_score d2_brier_score
        d2_log_loss_score d2_pinball_score d2_tweedie_score explained_variance_score f1_score
        fbeta_score get_scorer get_scorer_names jaccard_score log_loss make_scorer matthews_corrcoef
        mean_absolute_error mean_absolute_percentage_error mean_gamma_deviance mean_pinball_loss
        mean_poisson_deviance mean_squared_error mean_squared_log_error median_absolute_error
        precision_recall_curve precision_score r2_score recall_score roc_auc_score roc_curve
        root_mean_squared_error root_mean_squared_log_error
    """,
    "dps.model_selection": """
        GridSearchCV PartitionKFold RandomizedSearchCV cross_val_predict cross_val_score
        cross_validate train_test_split
    """,
    "dps.models": "Batch Layout Model Rows TableSpec Tensor check",
    "dps.optimizers": """
        Adagrad Adam AdamW Averaged Constant Cosine InvScaling Momentum Optimizer SGD ScaledAdagrad
        Schedule Step
    """,
    "dps.preprocessing": "FrameEncoder",
    "dps.torch": "TorchClassifier TorchRegressor",
    "dps.estimators": "Classifier Regressor estimator",
}

#: What every fitted estimator has beside its parameters and the metadata requests.
COMMON = """
    fit get_metadata_routing get_params partial_fit predict save score set_params
    best_loss_ encoder_ fit_report_ history_ loss_ n_features_in_ n_iter_ plan_
"""
COMMON += "set_callbacks" if SKLEARN >= (1, 9) else ""
CLASSIFIER = "classes_ decision_function multilabel_ predict_log_proba predict_proba"
OWN = {
    "LinearClassifier": "alpha_ coef_ coefficients intercept_ standardize_ to_sklearn",
    "LinearRegressor": "alpha_ coef_ coefficients intercept_ standardize_ to_sklearn",
    "MLPClassifier": """
        alpha_ coefs_ intercepts_ loss_curve_ n_layers_ n_outputs_ out_activation_ to_sklearn
    """,
    "MLPRegressor": """
        alpha_ coefs_ intercepts_ loss_curve_ n_layers_ n_outputs_ out_activation_ to_sklearn
    """,
    "FMClassifier": "alpha_ coef_ embeddings factor_weights_ factors_ intercept_ to_onnx",
    "FMRegressor": "alpha_ coef_ embeddings factor_weights_ factors_ intercept_ to_onnx",
    "ModelClassifier": "model_ params_",
    "ModelRegressor": "model_ n_outputs_ params_",
}
OBJECTS = {
    "FrameEncoder": """
        feature_names_in_ fit fit_transform get_feature_names_out get_metadata_routing get_params
        n_features_in_ n_features_out_ save set_output set_params transform dtype_
    """,
    "ParameterServer": """
        add apply assign close connect create disconnect dtypes ids_of list load name names note
        pull push push_pull put_note save stats tensors versions wait
    """,
}


def shown(thing: Any) -> set[str]:
    """The names that completion offers."""
    return {name for name in dir(thing) if not name.startswith("_") or name == "__version__"}


@pytest.mark.parametrize("module", MODULES)
def test_these_names_are_public(module: str) -> None:
    if module == "dps.torch":
        pytest.importorskip("torch")
    found = importlib.import_module(module)
    absent = set() if find_spec("torch") else {"torch"}
    assert shown(found) == set(MODULES[module].split()) - absent
    assert all(hasattr(found, name) for name in dir(found))


def test_type_checkers_know_all_names() -> None:
    assert set(get_args(losses.LabelLoss)) == set(names_of("classification"))
    assert set(get_args(losses.NumberLoss)) == set(names_of("regression"))
    assert get_args(optimizers.OptimizerName) == tuple(optimizers.OPTIMIZERS)
    assert get_args(modes.ModeName) == (*modes.MODES, modes.Auto.name)


def test_the_reference_has_a_page_for_every_public_name() -> None:
    pages = (Path(__file__).resolve().parents[2] / "docs" / "reference").glob("*.md")
    text = "".join(page.read_text() for page in pages)
    listed = [
        f"{module}.{name}"
        for module, names in re.findall(r"currentmodule:: ([\w.]+)\n([^`]*)```", text)
        for name in re.findall(r"^   (\w+)$", names, re.MULTILINE)
    ]
    public = {f"{module}.{name}" for module, names in MODULES.items() for name in names.split()}
    assert sorted(listed) == sorted(public - {*MODULES, "dps.__version__"})


def described(thing: Any) -> list[str]:
    """Names in the section on parameters of a docstring, in its order."""
    sections = re.split(r"\n\n(.+)\n-+\n", inspect.getdoc(thing) or "")
    lines = dict(zip(sections[1::2], sections[2::2], strict=True)).get("Parameters", "")
    names = re.findall(r"^(\S.*?)(?: : .*)?$", lines, re.MULTILINE)
    return [name.lstrip("*") for line in names for name in line.split(", ")]


@pytest.mark.parametrize(
    "module", [m for m in MODULES if m not in ("dps.errors", "dps.estimators")]
)
def test_every_parameter_is_described(module: str) -> None:
    if module == "dps.torch":
        pytest.importorskip("torch")
    place = importlib.import_module(module)
    things = [getattr(place, name) for name in MODULES[module].split() if name != "torch"]
    for thing in filter(callable, things):
        if getattr(thing, "_is_protocol", False):
            continue
        wanted = [name for name in inspect.signature(thing).parameters if name != "kwargs"]
        found = [name for name in described(thing) if name in wanted]
        if isinstance(thing, type):  # metrics describe those first that all have
            assert found == wanted, thing
        assert {*found} == {*wanted}, thing


@pytest.mark.parametrize("kind", OWN)
def test_estimators_have_these_attributes_and_no_others(kind: str) -> None:
    make = getattr(dps, kind)
    own = {"ModelClassifier": [Softmax], "ModelRegressor": [Line]}.get(kind, [])
    model = make(*own, max_iter=2, tol=None)
    X = np.random.default_rng(0).normal(size=(60, 3))
    params = set(model.get_params(deep=False))
    unfitted = {name for name in shown(model) - params if name.endswith("_")}
    if SKLEARN < (1, 8):  # whose estimators list what they have not, as well
        unfitted = {name for name in unfitted if hasattr(model, name)}
    assert not unfitted  # nothing looks fitted before `fit`
    model.fit(X, X[:, 0] > 0 if kind.endswith("Classifier") else X[:, 0])
    expected = f"{COMMON} {OWN[kind]} {CLASSIFIER if kind.endswith('Classifier') else ''}"
    requests = {name for name in shown(model) if name.startswith("set_") and "request" in name}
    assert shown(model) - params - requests == set(expected.split())


def test_objects_have_these_attributes_and_no_others() -> None:
    encoder = dps.preprocessing.FrameEncoder().fit(pd.DataFrame({"a": [1.0, 2.0]}))
    found = shown(encoder) - set(inspect.signature(type(encoder)).parameters)
    assert found == set(OBJECTS["FrameEncoder"].split())
    with dps.ParameterServer({"w": np.zeros(3)}) as server:
        assert shown(server) == set(OBJECTS["ParameterServer"].split())
