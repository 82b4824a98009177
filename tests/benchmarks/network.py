"""Perceptrons: rows a second beside products of matrices alone, PyTorch and scikit-learn; quality.

    python tests/benchmarks/network.py [--epochs N] [--repeat K] [--parts] [--quick]

A network 100-256-256-1 under squared error by Adam, float32, two processes with one core each,
512 rows each and step. "GEMM alone" are the products of those shapes, forward and backward, in two
threads with one thread of BLAS each, and nothing else. dps trains on a LocalCluster, with 100
numbers that go in as they are; an epoch's rows by its seconds. DDP's processes run already when its
clock starts. scikit-learn has one process, whose BLAS has both cores. Interleaved; medians.

Then two data sets of `public_data` at defaults, frames as they are, of seeds 0, 1 and 2: test rows
are those whose number is divisible by 5. LightGBM and XGBoost have their defaults, too, and take
strings as categories. With --parts also what each part of the defaults gives: the loss on held out
rows and on test rows without it, means over the seeds.
"""

from __future__ import annotations

import importlib
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, log_loss, root_mean_squared_error
from sklearn.neural_network import MLPRegressor as Peer
from threadpoolctl import threadpool_limits

from dps import MLPClassifier, MLPRegressor
from measure import bars, cluster, installed, options, table, timed
from public_data import DATA

FEATURES, HIDDEN, BATCH, RANKS, RATE = 100, (256, 256), 512, 2, 1e-3


def make(rows: int) -> tuple[Any, Any]:
    """Numbers, and a target that a network can learn."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, FEATURES), dtype=np.float32)
    return X, np.sin(X[:, 0]) + X[:, 1] * X[:, 2]


def gemm_rows(rows: int) -> float:
    """Rows a second of the products of a step alone, over both cores."""
    sizes = (FEATURES, *HIDDEN, 1)
    shapes = list(pairwise(sizes))

    def work(_: int) -> None:
        rng = np.random.default_rng(0)
        values = [rng.standard_normal((BATCH, size), dtype=np.float32) for size in sizes]
        # Of zeros, so that what goes around stays finite.
        weights = [np.zeros(shape, np.float32) for shape in shapes]
        gradients = [np.empty_like(matrix) for matrix in weights]
        for _ in range(rows // BATCH):
            for layer, matrix in enumerate(weights):
                np.matmul(values[layer], matrix, out=values[layer + 1])
            for layer, matrix in reversed(list(enumerate(weights))):
                np.matmul(values[layer].T, values[layer + 1], out=gradients[layer])
                if layer:  # no one asks for the derivatives of the inputs
                    np.matmul(values[layer + 1], matrix.T, out=values[layer])

    with threadpool_limits(1, "blas"), ThreadPoolExecutor(RANKS) as pool:
        list(pool.map(work, range(RANKS)))  # warm up
        seconds, _ = timed(lambda: list(pool.map(work, range(RANKS))))
    return RANKS * (rows // BATCH) * BATCH / seconds


def ddp_rank(rank: int, folder: str, rows: int, warm_up: int, steps: int) -> None:
    """Train as one of the processes of DDP; the first one writes the seconds of its steps."""
    import torch
    from torch import distributed, nn

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS
    )
    X, y = (torch.from_numpy(values) for values in make(rows))
    layers: list[nn.Module] = []
    for given, out in zip((FEATURES, *HIDDEN), HIDDEN, strict=False):
        layers += [nn.Linear(given, out), nn.ReLU()]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    began = 0.0
    for step in range(warm_up + steps):
        if step == warm_up:
            distributed.barrier()
            began = time.perf_counter()
        start = step * BATCH % (rows - BATCH + 1)
        optimizer.zero_grad()
        nn.functional.mse_loss(
            model(X[start : start + BATCH])[:, 0], y[start : start + BATCH]
        ).backward()
        optimizer.step()
    if rank == 0:
        Path(folder, "seconds").write_text(str(time.perf_counter() - began))
    distributed.destroy_process_group()


def ddp_rows(rows: int, steps: int) -> float:
    """Rows a second of DDP."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=ddp_rank, args=(rank, folder, rows, 20, steps))
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        return RANKS * BATCH * steps / float(Path(folder, "seconds").read_text())


def speed(chosen: Any) -> tuple[float, float, float]:
    """Shares of the products alone, and times the peers, that dps reaches."""
    rows, epochs = (4096, 2) if chosen.quick else (200_000, chosen.epochs)
    X, y = make(rows)
    found: dict[str, list[float]] = {}
    torch = installed("PyTorch", "torch")
    with cluster(RANKS) as client:
        chunks = -(-rows // RANKS)
        lazy = [client.persist(da.from_array(values, chunks=(chunks, *values.shape[1:])))
                for values in (X, y)]  # fmt: skip
        for turn in range(chosen.repeat):
            model = MLPRegressor(
                hidden_layer_sizes=HIDDEN, embedding_size=0, optimizer="adam",
                learning_rate=RATE, alpha=0.0, dropout=0.0,
                average=False, batch_size=RANKS * BATCH, max_iter=epochs, tol=None,
                early_stopping=False,
                random_state=turn,
            ).fit(*lazy)  # fmt: skip
            fastest = statistics.median(record["seconds"] for record in model.history_)
            found.setdefault("dps sync", []).append(rows / fastest)
            found.setdefault("GEMM alone", []).append(gemm_rows(rows // RANKS))
            if torch:
                steps = 3 if chosen.quick else rows // (RANKS * BATCH)
                found.setdefault("PyTorch DDP over gloo", []).append(ddp_rows(chunks, steps))
            peer = Peer(
                hidden_layer_sizes=HIDDEN, batch_size=RANKS * BATCH, max_iter=1, random_state=turn
            )
            some = slice(0, min(rows, 40_000))
            seconds, _ = timed(peer.fit, X[some], y[some])
            found.setdefault("scikit-learn", []).append(len(X[some]) / seconds)
    medians = {name: statistics.median(values) for name, values in found.items()}
    ours = medians["dps sync"]
    table(
        ("100-256-256-1", "rows a second", "dps is times as fast"),
        ((name, f"{value:,.0f}", f"{ours / value:.2f}") for name, value in medians.items()),
    )
    ddp = medians.get("PyTorch DDP over gloo", float("nan"))
    return ours / medians["GEMM alone"], ours / ddp, ours / medians["scikit-learn"]


#: What `test_losses` measures.
LOSSES = "adult, log loss", "california, RMSE"


def test_losses(seeds: range, rows: int | None, **options: Any) -> list[list[float]]:
    """The losses of test rows by seed, of networks with some options."""
    people, homes = (pd.read_parquet(DATA / f"{name}.parquet").iloc[:rows]
                     for name in ("adult", "california-housing"))  # fmt: skip
    income, value = people.pop("income"), homes.pop("MedHouseVal")
    test, other = np.arange(len(people)) % 5 == 0, np.arange(len(homes)) % 5 == 0
    losses: list[list[float]] = [[], []]
    for seed in seeds:
        model = MLPClassifier(random_state=seed, **options).fit(people[~test], income[~test])
        losses[0].append(log_loss(income[test], model.predict_proba(people[test])))
        regressor = MLPRegressor(random_state=seed, **options).fit(homes[~other], value[~other])
        predicted = regressor.predict(homes[other])
        losses[1].append(root_mean_squared_error(value[other], predicted))
    return losses


def quality(seeds: range, rows: int | None) -> tuple[float, float, float]:
    """Test log loss and accuracy on adult, and the error on california-housing."""
    frame = pd.read_parquet(DATA / "adult.parquet").iloc[:rows]
    income, test = frame.pop("income"), np.arange(len(frame)) % 5 == 0
    homes = pd.read_parquet(DATA / "california-housing.parquet").iloc[:rows]
    value, other = homes.pop("MedHouseVal"), np.arange(len(homes)) % 5 == 0
    columns: dict[str, list[float]] = {}
    for seed in seeds:
        seconds, model = timed(MLPClassifier(random_state=seed).fit, frame[~test], income[~test])
        probabilities = model.predict_proba(frame[test])
        columns.setdefault("adult, log loss", []).append(log_loss(income[test], probabilities))
        columns.setdefault("adult, accuracy", []).append(
            accuracy_score(income[test], model.predict(frame[test]))
        )
        columns.setdefault("adult, seconds", []).append(seconds)
        seconds, model = timed(MLPRegressor(random_state=seed).fit, homes[~other], value[~other])
        columns.setdefault("california, RMSE", []).append(
            root_mean_squared_error(value[other], model.predict(homes[other]))
        )
        columns.setdefault("california, seconds", []).append(seconds)
    for name, row in of_trees(frame, income, test, homes, value, other).items():
        columns[name] = [row] * len(seeds)
    table(
        ("at defaults", *(f"seed {seed}" for seed in seeds), "mean"),
        (
            (name, *(f"{one:.4f}" for one in found), f"{statistics.mean(found):.4f}")
            for name, found in columns.items()
        ),
    )
    named = ("adult, log loss", "adult, accuracy", "california, RMSE")
    loss, accuracy, error = (statistics.mean(columns[name]) for name in named)
    return loss, accuracy, error


def of_trees(
    frame: Any, income: Any, test: Any, homes: Any, value: Any, other: Any
) -> dict[str, float]:
    """The same losses of test rows by boosted trees, which draw nothing at their defaults."""
    texts = dict.fromkeys(frame.select_dtypes(exclude="number"), "category")
    frame, rich, found = frame.astype(texts), income != "<=50K", dict[str, float]()
    peers: dict[str, tuple[str, str, str, dict[str, Any]]] = {
        "LightGBM": ("lightgbm", "LGBMClassifier", "LGBMRegressor", {"verbose": -1}),
        "XGBoost": ("xgboost", "XGBClassifier", "XGBRegressor", {"enable_categorical": True}),
    }
    for name, (package, classifier, regressor, given) in peers.items():
        if not installed(name, package):
            continue
        module = importlib.import_module(package)
        name = f"{name} {module.__version__}"
        model = getattr(module, classifier)(**given).fit(frame[~test], rich[~test])
        found[f"adult, log loss, {name}"] = log_loss(
            rich[test], model.predict_proba(frame[test])[:, 1]
        )
        model = getattr(module, regressor)(**given).fit(homes[~other], value[~other])
        found[f"california, RMSE, {name}"] = root_mean_squared_error(
            value[other], model.predict(homes[other])
        )
    return found


#: Parts of the defaults, and what does without each.
PARTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "numbers scaled, not embedded": {"embedding_size": 0},
    "embedded into 4, not 8": {"embedding_size": 4},
    "no mean over epochs": {"average": False},
    "no weight decay": {"alpha": 0.0},
    "no dropout": {"dropout": 0.0},
    "a constant rate": {"learning_rate": "constant"},
    "layers of 256": {"hidden_layer_sizes": (256, 256)},
    "three layers": {"hidden_layer_sizes": (128, 128, 128)},
    "SiLU, not ReLU": {"activation": "silu"},
}


def parts(seeds: range) -> None:
    """Print what each part of the defaults gives."""
    people, homes = (pd.read_parquet(DATA / f"{name}.parquet")
                     for name in ("adult", "california-housing"))  # fmt: skip
    income, value = people.pop("income"), homes.pop("MedHouseVal")
    test, other = np.arange(len(people)) % 5 == 0, np.arange(len(homes)) % 5 == 0
    rows = []
    for name, changed in PARTS.items():
        cells = []
        for seed in seeds:
            model = MLPClassifier(random_state=seed, **changed).fit(people[~test], income[~test])
            found = log_loss(income[test], model.predict_proba(people[test]))
            regressor = MLPRegressor(random_state=seed, **changed).fit(homes[~other], value[~other])
            error = root_mean_squared_error(value[other], regressor.predict(homes[other]))
            # The squared error of a row is halved, as a loss.
            held = (2 * regressor.best_loss_) ** 0.5
            cells.append((model.best_loss_, found, held, error))
        rows.append((name, *(f"{cell:.4f}" for cell in np.mean(cells, axis=0))))
    header = "adult, held out", "adult, test", "california, held out", "california, test"
    table(("", *header), rows)


def main() -> None:
    chosen = options(__doc__, repeat=5, epochs=5, parts=False)
    share, ddp, peer = speed(chosen)
    asked = [
        ("network: share of the products alone", share, ">=", 0.7),
        ("network: times PyTorch DDP", ddp, ">=", 2.5),
        ("network: times scikit-learn", peer, ">=", 2.5),
    ]
    if DATA.exists():
        seeds = range(1 if chosen.quick else 3)
        loss, accuracy, error = quality(seeds, 3_000 if chosen.quick else None)
        if chosen.parts:
            parts(seeds)
        asked += [
            ("adult: test log loss", loss, "<=", 0.285),
            ("adult: accuracy", accuracy, ">=", 0.872),
            ("california: RMSE", error, "<=", 0.45),
        ]
    bars(*asked)


if __name__ == "__main__":
    main()
