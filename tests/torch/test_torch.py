"""PyTorch modules: as PyTorch's own loop trains them, and in every mode."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import warnings
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from configure import placed
from inside import carry_of, params_of
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import dps
from dps.models.base import DenseRows
from dps.models.columns import Padded
from dps.preprocessing import FrameEncoder

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dps.torch import TorchClassifier, TorchRegressor  # noqa: E402
from dps.torch.bound_module import BoundModule  # noqa: E402
from dps.torch.module import TorchModel, layout_of  # noqa: E402

pytestmark = pytest.mark.slow


def example(n: int = 1200, features: int = 6) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, features)).astype(np.float32)
    raw = np.tanh(X @ rng.normal(size=(features, 3))) * 3
    return X, np.array(["a", "b", "c"])[(raw + rng.gumbel(size=raw.shape)).argmax(axis=1)]


def plain(n_features: int, n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(n_features, 16), nn.ReLU(), nn.Linear(16, n_outputs))


def normed(n_features: int, n_outputs: int) -> nn.Module:
    # A bias before a norm has no gradient but rounding, which Adam makes steps of.
    first = nn.Linear(n_features, 16, bias=False)
    return nn.Sequential(first, nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, n_outputs))


def dropped(n_features: int, n_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(n_features, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, n_outputs)
    )


class Double:
    """A module in float64; its name, and so that of each test, is the same in all processes."""

    def __call__(self, n_features: int, n_outputs: int) -> nn.Module:
        return plain(n_features, n_outputs).double()

    def __repr__(self) -> str:
        return "double"


@parametrize_with_checks(  # in float64, as some of them ask for
    [
        TorchClassifier(Double(), learning_rate=0.1, max_iter=15, tol=None),
        TorchRegressor(Double(), learning_rate=0.1, max_iter=15, tol=None, n_replicas=2),
    ]
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


OPTIONS: dict[str, Any] = {
    "learning_rate": 0.01, "max_iter": 5, "tol": None, "batch_size": 64, "random_state": 0,
}  # fmt: skip


def fixed(make: Any, outputs: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return make(6, outputs)


def trained_by_torch(module: nn.Module, optimizer: Any, X: Any, y: Any, steps: int) -> nn.Module:
    module = copy.deepcopy(module)
    codes = torch.from_numpy(np.searchsorted(np.unique(y), y))
    stepper = optimizer(module.parameters())
    for _ in range(steps):
        stepper.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(X)), codes).backward()
        stepper.step()
    return module


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
@pytest.mark.parametrize("make", [plain, normed])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_one_replica_trains_as_pytorch_does(mode, make, name):
    X, y = example(300)
    module = fixed(make)
    theirs = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]
    expected = trained_by_torch(module, lambda p: theirs(p, lr=0.01), X, y, 5).state_dict()
    options = {**OPTIONS, "batch_size": 300, "shuffle": False, "optimizer": name, "mode": mode}
    before = copy.deepcopy(module.state_dict())
    model = TorchClassifier(module, n_replicas=1, **options).fit(X, y)
    found = model.module_.state_dict()
    assert list(found) == list(expected)
    for key, values in expected.items():
        assert found[key].dtype == values.dtype
        np.testing.assert_allclose(found[key].numpy(), values.numpy(), rtol=1e-3, atol=2e-5)
        assert torch.equal(module.state_dict()[key], before[key])  # what was given is as it was
    assert all(p.requires_grad and p.grad is None for p in model.module_.parameters())


def test_two_replicas_take_the_step_of_all_rows():
    X, y = example(300)
    module = fixed(plain)
    expected = trained_by_torch(module, lambda p: torch.optim.SGD(p, lr=0.5), X, y, 5).state_dict()
    options = {**OPTIONS, "learning_rate": 0.5, "batch_size": 300}
    model = TorchClassifier(module, n_replicas=2, optimizer="sgd", **options).fit(X, y)
    for key, values in model.module_.state_dict().items():
        np.testing.assert_allclose(values.numpy(), expected[key].numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [plain, normed, dropped])
def test_modes_that_wait_end_with_the_same_bits_and_async_near_them(make):
    X, y = example(3000)
    data = [da.from_array(a, chunks=(700, *a.shape[1:])) for a in (X, y)]

    def fit(mode: str, shards: int) -> Any:
        options = {**OPTIONS, "n_shards": shards, "n_replicas": 2, "max_iter": 8}
        return TorchClassifier(make, mode=mode, **placed(options)).fit(*data)

    first = fit("sync", 1)
    for mode, shards in (("sync", 3), ("allreduce", 1), ("allreduce", 2), ("sync", 1)):
        assert fit(mode, shards)._params.tobytes() == params_of(first).tobytes()
    losses = []
    for model in (first, fit("async", 2)):
        with torch.no_grad():
            logits = model.module_(torch.from_numpy(X))
        codes = torch.from_numpy(np.searchsorted(model.classes_, y))
        losses.append(float(nn.functional.cross_entropy(logits, codes)))
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_processes_end_with_the_same_bits(client):
    X, y = example()
    chunked = [client.persist(da.from_array(a, chunks=(300, *a.shape[1:]))) for a in (X, y)]
    bits = {
        TorchClassifier(
            normed, mode=mode, n_replicas=2, client=client, **placed({**OPTIONS, "n_shards": n})
        )
        .fit(*chunked)
        ._params.tobytes()
        for mode, n in (("sync", 1), ("sync", 2), ("allreduce", 1))
    }
    assert len(bits) == 1


def test_gradients_are_views_of_the_sum_and_parameters_of_the_point():
    module = fixed(normed)
    model = TorchModel(module, nn.CrossEntropyLoss(reduction="none"), 6, 3, True)
    params, out = model.initial(), np.zeros(model.layout.size, np.float32)
    X, y = example(50)
    codes = np.searchsorted(np.unique(y), y).astype(np.float32)
    model.loss_gradient(params, X, codes, None, out, np.random.default_rng(0))
    live = model._live
    weight = live.module[0].weight
    assert weight.data_ptr() == params.ctypes.data
    assert weight.grad.data_ptr() == out.ctypes.data
    once = out.copy()
    model.loss_gradient(params, X, codes, None, out)
    np.testing.assert_allclose(out, 2 * once, rtol=1e-4, atol=1e-4)
    assert (params == model.initial()).all()
    assert not model.draws  # nothing was drawn in the first step


@pytest.mark.parametrize("make", [plain, normed])
def test_vectors_that_are_copied_lead_to_the_same(make):
    X, y = example(50)
    codes = np.searchsorted(np.unique(y), y).astype(np.float32)
    found = []
    for copied in (False, True):
        model = TorchModel(fixed(make), nn.CrossEntropyLoss(reduction="none"), 6, 3, True)
        device = torch.device("cpu")
        module = copy.deepcopy(model.module)
        model._live = BoundModule(module, model.layout, device, copied=copied)
        params, out = model.initial(), np.zeros(model.layout.size, np.float32)
        for _ in range(3):
            out[:] = 0
            model.loss_gradient(params, X, codes, None, out, np.random.default_rng(0))
            params -= out / 50
        found.append(params.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("make", [plain, normed])
def test_a_pickled_model_has_no_weights_and_computes_as_before(make):
    X, y = example(50)
    codes = np.searchsorted(np.unique(y), y).astype(np.float32)
    model = TorchModel(fixed(make), nn.CrossEntropyLoss(reduction="none"), 6, 3, True)
    params, found = model.initial(), []
    for each in (model, pickle.loads(pickle.dumps(model))):
        out = np.zeros(model.layout.size, np.float32)
        loss = each.loss_gradient(params, X, codes, None, out, np.random.default_rng(0))
        found.append((loss, out.tobytes(), each.raw(params, DenseRows(X)).tobytes()))
    assert found[0] == found[1]
    large = nn.Sequential(nn.Linear(6, 100_000), nn.ReLU(), nn.Linear(100_000, 3))
    model = TorchModel(large, nn.CrossEntropyLoss(reduction="none"), 6, 3, True)
    assert len(pickle.dumps(model)) < 10_000 < 1e-2 * model.initial().nbytes


def test_the_weights_of_a_module_are_in_no_graph(client):
    X, y = example()
    large = nn.Sequential(nn.Linear(6, 50_000), nn.ReLU(), nn.Linear(50_000, 3))
    model = TorchClassifier(large, n_replicas=4, client=client, max_iter=1, tol=None)
    threshold = {"distributed.admin.large-graph-warning-threshold": "100kB"}
    with dask.config.set(threshold), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Sending large graph")
        model.fit(X, y)
    assert model.n_iter_ == 1


def test_buffers_are_kept_with_the_epoch_that_is_kept():
    X, y = example(600)
    options = {**OPTIONS, "learning_rate": 0.5, "max_iter": 30, "n_iter_no_change": 3, "tol": 0.0}
    model = TorchClassifier(normed, early_stopping=True, n_replicas=2, **options).fit(X, y)
    tracked = model.module_[1].num_batches_tracked
    assert tracked.dtype == torch.int64
    assert int(tracked) == carry_of(model).version
    model.partial_fit(X, y)
    assert int(model.module_[1].num_batches_tracked) == carry_of(model).version > int(tracked)


def test_dropout_follows_from_the_seed_alone_and_leaves_the_generator():
    X, y = example()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    bits = [
        TorchClassifier(dropped, n_replicas=2, **OPTIONS).fit(X, y)._params.tobytes()
        for _ in range(2)
    ]
    assert bits[0] == bits[1]
    assert torch.equal(torch.get_rng_state(), before)
    other = TorchClassifier(dropped, n_replicas=2, **{**OPTIONS, "random_state": 1}).fit(X, y)
    assert params_of(other).tobytes() != bits[0]
    assert (other.predict_proba(X) == other.predict_proba(X)).all()  # nothing is dropped


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_passes_get_further_than_steps_and_not_with_dropout():
    X, y = example()
    passes, steps = (
        TorchClassifier(fixed(plain), optimizer=name, max_iter=30, n_replicas=2).fit(X, y)
        for name in ("lbfgs", "auto")
    )
    assert passes.history_[-1]["full_batch"]
    assert not steps.history_[-1]["full_batch"]
    assert passes.history_[-1]["loss"] < steps.history_[-1]["loss"] / 2
    with pytest.raises(ValueError, match="draws by chance"):
        TorchClassifier(dropped, optimizer="lbfgs").fit(X, y)
    with pytest.raises(ValueError, match="not possible with tensors that are not trained"):
        TorchClassifier(normed, optimizer="lbfgs").fit(X, y)


def test_predictions_are_the_modules_and_lazy():
    X, y = example()
    threads = torch.get_num_threads()
    model = TorchClassifier(plain, n_replicas=2, **OPTIONS).fit(X, y)
    assert torch.get_num_threads() == threads
    with torch.no_grad():
        logits = model.module_(torch.from_numpy(X))
    np.testing.assert_allclose(
        model.predict_proba(X), torch.softmax(logits, 1).numpy(), rtol=1e-5, atol=1e-6
    )
    lazy = model.predict_proba(da.from_array(X, chunks=500))
    np.testing.assert_array_equal(lazy.compute(), model.predict_proba(X))
    assert model.score(X, y) > 0.6
    empty = da.from_array(X, chunks=600)
    empty = empty[da.from_array(X[:, 0] > X[:600, 0].max(), chunks=600)]
    assert len(model.predict(empty).compute()) < 600


def test_one_output_is_enough_for_two_classes():
    X, y = example()
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    for criterion in (None, "BCEWithLogitsLoss", nn.SoftMarginLoss):
        model = TorchClassifier(module, criterion, **OPTIONS).fit(X, y == "a")
        assert model.decision_function(X).shape == (1200,)
        if criterion is None:
            assert model.score(X, y == "a") > 0.7
    two = TorchClassifier(plain, **OPTIONS).fit(X, y == "a")
    assert two.decision_function(X).shape == (1200,)


def test_weights_and_classes_count_as_rows_do():
    X, y = example(400)
    module, options = fixed(plain), {**OPTIONS, "batch_size": 800, "shuffle": False}
    twice = TorchClassifier(module, **options).fit(np.repeat(X, 2, 0), np.repeat(y, 2))
    heavy = TorchClassifier(module, **options).fit(X, y, sample_weight=np.full(400, 2.0))
    np.testing.assert_allclose(params_of(twice), params_of(heavy), atol=1e-4)
    lifted = TorchClassifier(module, class_weight={"a": 9.0}, **options).fit(X, y)
    assert (lifted.predict(X) == "a").sum() > (heavy.predict(X) == "a").sum()
    mean = TorchClassifier(module, lambda o, t: nn.functional.cross_entropy(o, t), **options)
    mean.fit(X, y)
    with pytest.raises(ValueError, match="one number for a batch, which leaves nothing to weigh"):
        mean.fit(X, y, sample_weight=np.arange(400.0))


def test_sparse_rows_reach_modules_as_they_ask_for_them():
    X, y = example()
    sparse = scipy.sparse.csr_array(X * (np.abs(X) > 1))
    options = {**OPTIONS, "n_replicas": 2}
    dense = TorchClassifier(plain, **options).fit(sparse, y)
    thin = TorchClassifier(plain, takes="sparse", **options).fit(sparse, y)
    np.testing.assert_allclose(params_of(thin), params_of(dense), atol=1e-3)
    np.testing.assert_allclose(thin.predict_proba(sparse), dense.predict_proba(sparse), atol=1e-3)


def test_regressions_searches_clones_and_what_is_frozen():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 6))
    Y = np.stack([X[:, 0] * X[:, 1], X[:, 2]], axis=1)
    module = fixed(plain, 2).double()
    model = TorchRegressor(module, "HuberLoss", **{**OPTIONS, "max_iter": 30}).fit(X, Y)
    assert model.predict(X).shape == (800, 2)
    assert model.score(X, Y) > 0.8
    assert model.predict(X).dtype == np.float64
    one = TorchRegressor(plain, warm_start=True, **OPTIONS).fit(X.astype("f4"), Y[:, 1])
    once = one.loss_
    assert one.fit(X.astype("f4"), Y[:, 1]).loss_ < once
    assert not hasattr(clone(one), "module_")
    search = GridSearchCV(TorchRegressor(plain, **OPTIONS), {"learning_rate": [1e-6, 0.05]}, cv=2)
    assert search.fit(X, Y[:, 1]).best_params_ == {"learning_rate": 0.05}
    module[0].requires_grad_(False)
    half = TorchRegressor(module, **OPTIONS).fit(X, Y)
    assert torch.equal(half.module_[0].weight, module[0].weight)
    assert not torch.equal(half.module_[2].weight, module[2].weight)
    kept = io.BytesIO()
    torch.save(half.module_.state_dict(), kept)  # a plain module
    module.load_state_dict(torch.load(io.BytesIO(kept.getvalue()), weights_only=True))


class Table(nn.Module):
    """Numbers, and embeddings of categories."""

    def __init__(self, sizes: dict[str, int], n_outputs: int) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(n, 3) for name, n in sizes.items() if n})
        self.numbers = [name for name, n in sizes.items() if not n]
        self.last = nn.Linear(3 * len(self.tables) + len(self.numbers), n_outputs)

    def forward(self, columns):
        parts = [table(columns[name]) for name, table in self.tables.items()]
        parts += [columns[name][:, None] for name in self.numbers]
        return self.last(torch.cat(parts, 1))


def test_columns_come_by_name_with_codes_for_embeddings():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"kind": rng.choice([*"abcd"], 800), "area": rng.normal(size=800)})
    y = (frame.kind == "b") ^ (frame.kind == "d")
    options = {**OPTIONS, "max_iter": 20, "learning_rate": 0.05, "n_replicas": 2}
    model = TorchClassifier(Table, takes="columns", **options).fit(frame, y)
    assert model.score(frame, y) == 1.0
    lazy = dd.from_pandas(frame, npartitions=3)
    assert (model.predict(lazy).compute().to_numpy() == model.predict(frame)).all()


class Recurrent(nn.Module):
    """The last state of a recurrent network over each list."""

    def __init__(self, sizes: dict[str, int], n_outputs: int) -> None:
        super().__init__()
        assert sizes == {"x0": 0}
        self.cell, self.last = nn.GRU(1, 8, batch_first=True), nn.Linear(8, n_outputs)

    def forward(self, columns):
        lists = columns["x0"]
        states, _ = self.cell(lists.values[:, :, None])
        return self.last(states[torch.arange(len(states)), lists.lengths - 1])


def test_arrays_of_several_lengths_are_padded():
    rng = np.random.default_rng(0)
    lists = [rng.normal(size=length).astype("f4") for length in rng.integers(1, 8, 400)]
    y = np.array([values[-1] > 0 for values in lists])
    encoder = FrameEncoder(lists=10)
    options = {**OPTIONS, "max_iter": 30, "learning_rate": 0.02, "n_replicas": 2}
    model = TorchClassifier(Recurrent, takes="columns", encoder=encoder, **options).fit(lists, y)
    assert model.score(lists, y) > 0.9
    with torch.no_grad():
        alone = [
            model.module_({"x0": Padded(torch.tensor([v]), torch.tensor([len(v)]), None)})[0]
            for v in map(np.ndarray.tolist, lists[:20])
        ]
    whole = model.decision_function(lists[:20])
    np.testing.assert_allclose([float(a[1] - a[0]) for a in alone], whole, atol=1e-5)


def sized(n_features, n_classes, hidden=4, activation=nn.ReLU):
    return nn.Sequential(nn.Linear(n_features, hidden), activation(), nn.Linear(hidden, n_classes))


def test_what_makes_a_module_takes_parameters_that_searches_and_files_have(tmp_path):
    X, y = example(300)
    model = TorchClassifier(sized, module__hidden=3, module__activation=nn.Tanh, **OPTIONS)
    assert model.get_params()["module__hidden"] == clone(model).module__hidden == 3
    assert "module__hidden=3" in repr(model)
    model.set_params(module__hidden=5, learning_rate=0.02).fit(X, y)
    assert model.module_[0].out_features == 5
    assert isinstance(model.module_[1], nn.Tanh)
    search = GridSearchCV(TorchClassifier(sized, **OPTIONS), {"module__hidden": [2, 6]}, cv=2)
    best = search.fit(X, y).best_estimator_
    assert best.module_[0].out_features == search.best_params_["module__hidden"]

    model.save(tmp_path / "model")
    with pytest.raises(TypeError, match=r"module and module__activation again"):
        dps.load(tmp_path / "model")
    loaded = dps.load(tmp_path / "model", module=sized, module__activation=nn.Tanh)
    assert loaded.module__hidden == 5
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))

    with pytest.raises(TypeError, match="unexpected keyword argument 'hiden'"):
        TorchClassifier(sized, module__hiden=3, **OPTIONS).fit(X, y)
    with pytest.raises(TypeError, match="module__hidden is for a class or function that makes"):
        TorchClassifier(sized(4, 2), module__hidden=3, **OPTIONS).fit(X, y)
    with pytest.raises(TypeError, match="unexpected keyword argument 'modul__hidden'"):
        TorchClassifier(sized, modul__hidden=3)
    with pytest.raises(ValueError, match="Invalid parameter 'hidden'"):
        TorchClassifier(sized).set_params(hidden=3)


@pytest.mark.slow
def test_loading_a_module_imports_what_it_needs(tmp_path):
    X, y = example(300)
    TorchClassifier(nn.Linear(6, 3), **OPTIONS).fit(X, y).save(tmp_path / "model")
    code = """
import sys, dps
from torch import nn
assert "dps.torch" not in sys.modules
print(type(dps.load(sys.argv[1], module=nn.Linear(6, 3))).__name__)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "TorchClassifier\n"


def test_a_saved_module_is_given_again_and_carries_on(tmp_path):
    X, y = example(300)
    for number, (module, criterion) in enumerate(
        ((normed, None), (fixed(normed), nn.CrossEntropyLoss(label_smoothing=0.1)))
    ):
        path = tmp_path / str(number)
        model = TorchClassifier(module, criterion, n_replicas=2, **OPTIONS).fit(X, y)
        model.save(path)
        given: dict[str, Any] = {"module": module}
        if criterion is not None:
            with pytest.raises(TypeError, match="give criterion again"):
                dps.load(path, **given)
            given["criterion"] = criterion
        again = dps.load(path, **given)
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
        for key, values in model.module_.state_dict().items():
            assert torch.equal(again.module_.state_dict()[key], values)
        carried = again.partial_fit(X, y)
        assert params_of(carried).tobytes() == model.partial_fit(X, y)._params.tobytes()
    with pytest.raises(ValueError, match="model has other tensors"):
        dps.load(tmp_path / "0", module=plain)


def test_modules_that_cannot_be_trained_are_refused():
    X, y = example(100)
    for bad, error, message in (
        (3, TypeError, "must be a torch.nn.Module, or make one"),
        (nn.ReLU(), ValueError, "has no parameters to train"),
        (nn.Linear(6, 3).half(), TypeError, r"use module\.float\(\)"),
        (nn.Sequential(nn.LazyLinear(3)), ValueError, "call it once on a batch"),
    ):
        with pytest.raises(error, match=message):
            TorchClassifier(bad, **OPTIONS).fit(X, y)
    with pytest.raises(ValueError, match=r"a loss of torch\.nn or its name"):
        TorchClassifier(plain, "Linear", **OPTIONS).fit(X, y)
    with pytest.raises(ValueError, match=r"outputs are of the shape \(.*, 2\), and the targets"):
        TorchRegressor(lambda n, _: nn.Linear(n, 2), **OPTIONS).fit(X, X[:, 0])
    assert len(layout_of(fixed(normed)).tensors) == 8


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_other_outputs_than_there_are_classes_are_an_error_of_the_fit(outputs: int) -> None:
    X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    with pytest.raises(ValueError, match=f"{outputs} outputs a row, and there are 3 classes"):
        TorchClassifier(nn.Linear(4, outputs), max_iter=2, tol=None).fit(X, np.arange(60) % 3)


def convolutional(shape: Any, n_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, shape[0])), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * (shape[0] - 2) * (shape[1] - 2), n_classes),
    )  # fmt: skip


def images(n: int = 400) -> tuple[Any, Any]:
    """Small pictures, of which one half is brighter."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, 6, 5)).astype(np.float32), rng.integers(0, 2, n)
    X[:, :3] += y[:, None, None]
    return X, y


@pytest.mark.parametrize("chunks", [None, (100, 6, 5), (100, 3, 5)])
def test_images_train_as_flat_rows_that_are_unflattened(chunks, tmp_path):
    X, y = images()
    flat = nn.Sequential(nn.Unflatten(1, (6, 5)), fixed(lambda *_: convolutional((6, 5), 2)))
    expected = TorchClassifier(flat, n_replicas=2, **OPTIONS).fit(X.reshape(len(X), -1), y)
    given = (X, y) if chunks is None else (da.from_array(X, chunks), da.from_array(y, 100))
    model = TorchClassifier(flat[1], n_replicas=2, **OPTIONS)
    model.fit(*given, X_val=X[:50], y_val=y[:50])
    if chunks is None:
        assert params_of(model).tobytes() == params_of(expected).tobytes()
    assert model.score(*given) > 0.9
    assert model.n_features_in_ == 30
    wanted = np.asarray(model.predict_proba(given[0]))
    np.testing.assert_array_equal(wanted, model.predict_proba(X.reshape(len(X), -1)))
    model.save(tmp_path / "model")
    again = dps.load(tmp_path / "model", module=flat[1])
    np.testing.assert_array_equal(np.asarray(again.predict_proba(given[0])), wanted)
    again.partial_fit(*given)
    with pytest.raises(ValueError, match=r"rows of the shape \(5, 6\), but .* expecting \(6, 5\)"):
        model.predict(X.swapaxes(1, 2))
    with pytest.raises(ValueError, match=r"the shape of a row was \(6, 5\) and is now \(5, 6\)"):
        model.partial_fit(X.swapaxes(1, 2), y)


def test_an_optimizer_of_pytorch_is_refused_with_the_name_of_ours():
    with pytest.raises(ValueError, match=r"Adam'> instead. Use 'adam', or one of dps.optimizers"):
        TorchClassifier(plain, optimizer=torch.optim.Adam).fit(*example(50))


def test_a_function_that_makes_a_module_gets_the_shape_of_rows():
    X, y = images()
    made = []

    def make(shape: Any, n_classes: int) -> nn.Module:
        made.append(shape)
        return convolutional(shape, n_classes)

    search = GridSearchCV(TorchClassifier(make, **OPTIONS), {"alpha": [0.0, 0.1]}, cv=2)
    assert search.fit(X, y).best_score_ > 0.8
    assert set(made) == {(6, 5)}
    with pytest.raises(
        ValueError, match=r"rows of the shape \(6, 5\): a model that takes 'sparse'"
    ):
        TorchClassifier(make, takes="sparse").fit(X, y)


class Holds(nn.Module):
    def __init__(self, n_features: int, n_outputs: int) -> None:
        super().__init__()
        self.inner = torch.jit.script(plain(n_features, n_outputs))

    def forward(self, x: Any) -> Any:
        return self.inner(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda a, k: torch.jit.script(plain(a, k)),
        lambda a, k: torch.jit.trace(plain(a, k), torch.zeros(2, a)),
        Holds,
    ],
    ids=["scripted", "traced", "holds one"],
)
def test_modules_whose_parameters_would_not_be_trained_are_refused(make: Any) -> None:
    X, y = example(100)
    for given in (make, make(6, 3)):
        with pytest.raises(TypeError, match="is a scripted or traced module"):
            TorchClassifier(given, max_iter=1).fit(X, y)


class Logs(nn.Module):
    def __init__(self, n_features: int, n_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(n_features, n_outputs)

    def forward(self, x: Any) -> Any:
        return self.linear(torch.log(x))


@pytest.mark.parametrize("kind", [TorchClassifier, TorchRegressor])
def test_outputs_that_are_no_numbers_are_errors_of_their_rows(kind: Any) -> None:
    X = np.abs(example(200)[0]) + np.float32(0.1)
    model = kind(Logs, max_iter=2, tol=None, random_state=0).fit(X, np.arange(200) % 2)
    for value, said in ((-1.0, "nan"), (0.0, "nan|inf")):
        odd = X[:9].copy()
        odd[7, 1] = value
        said = f"output is -?({said}) for 1 of {{}} rows of X{{}}, the first in row {{}}"
        methods = ["predict", *(["predict_proba"] if kind is TorchClassifier else [])]
        for method in methods:
            with pytest.raises(dps.errors.NonFiniteError, match=said.format(9, "", 7)):
                getattr(model, method)(odd)
            lazy = getattr(model, method)(da.from_array(odd, chunks=(5, 6)))
            with pytest.raises(dps.errors.NonFiniteError, match=said.format(4, ".*", 2)):
                lazy.compute(scheduler="sync")
    assert np.isfinite(model.score(X, np.arange(200) % 2))


class Clamped(nn.Module):
    """Its forward writes to its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.out.weight.clamp_(-0.1, 0.1)
        return self.out(x)


class Bounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 8, max_norm=1.0), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.out(self.embedding(x.long()[:, 0]))


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
@pytest.mark.parametrize("made", [Clamped, Bounded])
def test_modules_that_write_to_their_weights_are_refused(made: Any, mode: str) -> None:
    X, y = example(100)
    X = np.abs(X) if made is Bounded else X
    with pytest.raises(TypeError, match="writes to its own weights in forward"):
        TorchClassifier(made(), mode=mode, max_iter=2, tol=None).fit(X.clip(0, 8), y)


def test_running_means_that_the_first_step_sets_are_refused_in_async() -> None:
    X, y = example(200)

    def made(n_features: int, n_outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.BatchNorm1d(n_features, momentum=None), nn.Linear(n_features, n_outputs)
        )

    with pytest.raises(ValueError, match=r"'0' of the module has momentum=None.*mode='sync'"):
        TorchClassifier(made, mode="async").fit(X, y)
    model = TorchClassifier(made, n_replicas=2, max_iter=3, tol=None, batch_size=50).fit(X, y)
    np.testing.assert_allclose(model.module_[0].running_var, X.var(axis=0), rtol=0.05)


def test_indices_in_one_array_are_an_error_that_says_what_keeps_them() -> None:
    ids = np.arange(60).reshape(-1, 1) % 9

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(9, 8), nn.Linear(8, 2)

        def forward(self, x: Any) -> Any:
            return self.out(self.embedding(x[:, 0]))

    with pytest.raises(RuntimeError, match="indices") as caught:
        TorchClassifier(Plain(), max_iter=1, tol=None).fit(ids, ids[:, 0] % 2)
    assert any("give {'x': array}" in note for note in caught.value.__notes__)
    model = TorchClassifier(Plain(), max_iter=1, tol=None).fit({"x": ids}, ids[:, 0] % 2)
    assert model.n_iter_ == 1
