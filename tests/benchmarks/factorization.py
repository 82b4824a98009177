"""Factorization machines: rows a second on hashed fields beside PyTorch; quality at defaults.

    python tests/benchmarks/factorization.py [--rows N] [--epochs N] [--parts] [--quick]

20 fields of categories, as rare as words are (Zipf's law), each hashed to its share of 2^20 rows of
16 factors, two replicas of a LocalCluster, steps of 1,024 rows; an epoch's rows by its seconds.
PyTorch has a process a core, which share one model without locks: tables of `nn.Embedding` with
sparse gradients, by Adagrad, and by `SparseAdam`, without a penalty. Interleaved; medians.

Then the quality of `FMClassifier`, of DeepFM, which it is with layers of 64 and 32, and of
`LinearClassifier`, all at defaults, on films and people, on adult and on a tenth of the flights of
`public_data`, of seeds 0 to 4: test rows are those whose number is divisible by 5. With
--parts also what each part of the defaults gives, as means over the seeds.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
from sklearn.metrics import log_loss, roc_auc_score

from dps import FMClassifier, LinearClassifier
from flights import on_cluster
from measure import bars, cluster, installed, options, table
from public_data import DATA

FIELDS, FACTORS, BATCH, RANKS, RATE = 20, 16, 1024, 2, 0.05
LAYERS = (64, 32)


def hashed(rows: int, width: int, seed: int = 0) -> tuple[Any, Any]:
    """The column of each field of each row, and labels that some of them make likely."""
    rng = np.random.default_rng(seed)
    words = rng.zipf(1.2, size=(rows, FIELDS)) % (1 << 32)
    own = width // FIELDS
    columns = words * 2_654_435_761 % (1 << 32) % own + np.arange(FIELDS) * own
    odd = (words % 2 * (words < 50)).sum(axis=1)
    return columns.astype(np.int32), (odd > np.median(odd)).astype(np.int8)


def as_csr(columns: Any, width: int) -> Any:
    starts = np.arange(0, columns.size + 1, FIELDS, dtype=np.int32)
    values = np.ones(columns.size, np.float32)
    return scipy.sparse.csr_matrix((values, columns.ravel(), starts), (len(columns), width))


def torch_rank(rank: int, shared: Any, rows: int, steps: int, width: int, meet: Any) -> None:
    """Train one of the processes of PyTorch, which write to the same tables."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    tables, kind, seconds = shared
    columns, labels = hashed(rows, width, rank)
    X, y = torch.from_numpy(columns.astype(np.int64)), torch.from_numpy(labels.astype(np.float32))
    factors, weights, bias = tables
    sparse = [factors.weight, weights.weight]
    made = {
        "Adagrad": lambda: [torch.optim.Adagrad([*sparse, bias], lr=RATE)],
        "SparseAdam": lambda: [torch.optim.SparseAdam(sparse), torch.optim.Adam([bias])],
    }
    optimizers: list[Any] = made[kind]()
    for step in range(-5, steps):
        if step == 0:
            meet.wait()
            began = time.perf_counter()
        start = step % (rows // BATCH) * BATCH
        picked = X[start : start + BATCH]
        v = factors(picked)
        pairs = (v.sum(1) ** 2 - (v * v).sum(1)).sum(1) / 2
        raw = weights(picked).sum((1, 2)) + pairs + bias
        loss = nn.functional.binary_cross_entropy_with_logits(raw, y[start : start + BATCH])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
    seconds[rank] = time.perf_counter() - began


def torch_rows(kind: str, rows: int, steps: int, width: int) -> float:
    """Rows a second of PyTorch, over both processes."""
    import torch
    from torch import nn

    context = multiprocessing.get_context("spawn")
    factors = nn.Embedding(width, FACTORS, sparse=True)
    weights = nn.Embedding(width, 1, sparse=True)
    bias = torch.zeros(1, requires_grad=True)
    with torch.no_grad():
        factors.weight.mul_(0.05)
        weights.weight.zero_()
    for tensor in (factors.weight, weights.weight, bias):
        tensor.share_memory_()
    seconds, meet = context.Array("d", RANKS), context.Barrier(RANKS)
    shared = (factors, weights, bias), kind, seconds
    ranks = [
        context.Process(target=torch_rank, args=(rank, shared, rows // RANKS, steps, width, meet))
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return RANKS * BATCH * steps / max(seconds)


def speed(chosen: Any) -> float:
    """Rows a second on hashed fields; how many times those of PyTorch."""
    rows, width, steps = chosen.rows, 1 << 20, 100
    if chosen.quick:
        rows, width, steps = 8 * BATCH, 1 << 12, 3
    columns, labels = hashed(rows, width)
    X = as_csr(columns, width)
    peers = ("Adagrad",) if chosen.quick else ("Adagrad", "SparseAdam")
    torch, found = installed("PyTorch", "torch"), dict[str, list[float]]()
    with cluster(RANKS) as client:
        lazy = on_cluster(client, X, labels)
        for turn in range(chosen.repeat):
            for name, mode, alpha in (
                ("dps sync", "sync", 0.0), ("dps async", "async", 0.0),
                ("dps sync, its penalty", "sync", "auto"),
            ):  # fmt: skip
                model = FMClassifier(
                    FACTORS, batch_size=BATCH, mode=mode, max_iter=chosen.epochs, tol=None,
                    alpha=alpha,
                    early_stopping=False, average=False, client=client, random_state=turn,
                ).fit(*lazy)  # fmt: skip
                fastest = statistics.median(record["seconds"] for record in model.history_)
                found.setdefault(name, []).append(rows / fastest)
            for kind in peers if torch else ():
                times = found.setdefault(f"PyTorch, {kind}", [])
                times.append(torch_rows(kind, rows, steps, width))
    medians = {name: statistics.median(values) for name, values in found.items()}
    ours = medians["dps sync"]
    table(
        (f"{FIELDS} fields in {width:,} rows", "rows a second", "dps sync is times as fast"),
        ((name, f"{value:,.0f}", f"{ours / value:.2f}") for name, value in medians.items()),
    )
    return ours / max((medians[name] for name in medians if "PyTorch" in name), default=np.nan)


def films() -> tuple[Any, Any]:
    """Users and films, and labels for ratings of four stars or more."""
    frame = pd.read_parquet(DATA / "movielens-100k.parquet")
    people = ["user_id", "movie_id", "age", "gender", "occupation"]
    rows = frame[people].astype({"user_id": "category", "movie_id": "category"})
    return rows, (frame["rating"] >= 4).to_numpy()


def adult() -> tuple[Any, Any]:
    frame = pd.read_parquet(DATA / "adult.parquet")
    income = frame.pop("income")
    return frame, (income == income.max()).to_numpy()


def some_flights() -> tuple[Any, Any]:
    frame = pd.read_parquet(DATA / "flights-3m.parquet").iloc[::10].reset_index(drop=True)
    when = frame["date"].dt
    clock = {"hour": when.hour, "weekday": when.day_of_week, "day": when.day, "month": when.month}
    parts = {name: values.astype("category") for name, values in clock.items()}
    pair = frame["origin"].astype(str) + "-" + frame["destination"].astype(str)
    rows = frame[["origin", "destination", "distance"]].assign(**parts, pair=pair)
    return rows, (frame["delay"] > 15).to_numpy()


SETS = {"films": films, "adult": adult, "flights": some_flights}
KINDS: dict[str, Any] = {
    "LinearClassifier": lambda seed, **_: LinearClassifier(random_state=seed),
    "FMClassifier": lambda seed, **more: FMClassifier(random_state=seed, **more),
    "DeepFM": lambda seed, **more: FMClassifier(
        random_state=seed, hidden_layer_sizes=LAYERS, **more
    ),
}
#: Parts of the defaults, and what does without each.
PARTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "8 factors": {"n_factors": 8},
    "32 factors": {"n_factors": 32},
    "no mean over epochs": {"average": False},
    "no penalty": {"alpha": 0.0},
    "a constant rate": {"learning_rate": "constant"},
    "no dropout": {"dropout": 0.0},
}


def scores(kind: str, data: tuple[Any, Any], seed: int, **more: Any) -> tuple[float, float]:
    """AUC and log loss on test rows."""
    rows, labels = data
    test = np.arange(len(rows)) % 5 == 0
    model = KINDS[kind](seed, **more).fit(rows[~test], labels[~test])
    found = model.predict_proba(rows[test])[:, 1]
    return roc_auc_score(labels[test], found), log_loss(labels[test], found)


def quality(names: list[str], seeds: range) -> dict[tuple[str, str], Any]:
    """Medians over seeds of AUC and log loss, of each data set and kind."""
    found = {}
    for name in names:
        data = SETS[name]()
        for kind in KINDS:
            found[name, kind] = np.median([scores(kind, data, seed) for seed in seeds], axis=0)
    table(
        ("at defaults", "AUC", "log loss"),
        (
            (f"{name}, {kind}", f"{auc:.4f}", f"{loss:.4f}")
            for (name, kind), (auc, loss) in found.items()
        ),
    )
    return found


def parts(names: list[str], seeds: range) -> None:
    """Print the log loss without each part of the defaults."""
    data = {name: SETS[name]() for name in names}
    columns = [(name, kind) for name in names for kind in ("FMClassifier", "DeepFM")]
    rows = []
    for part, changed in PARTS.items():
        cells = [
            np.mean([scores(kind, data[name], seed, **changed)[1] for seed in seeds])
            for name, kind in columns
        ]
        rows.append((part, *(f"{cell:.4f}" for cell in cells)))
    table(("", *(f"{name}, {kind}" for name, kind in columns)), rows)


def main() -> None:
    chosen = options(__doc__, repeat=3, rows=400_000, epochs=3, parts=False)
    asked = [("hashed fields: times PyTorch", speed(chosen), ">=", 10.0)]
    if DATA.exists():
        names, seeds = ["films"] if chosen.quick else [*SETS], range(1 if chosen.quick else 5)
        found = quality(names, seeds)
        if chosen.parts:
            parts(names, seeds)
        linear = found["films", "LinearClassifier"]
        asked += [
            ("films: AUC of FMClassifier", found["films", "FMClassifier"][0], ">=", linear[0]),
            ("films: log loss of FMClassifier", found["films", "FMClassifier"][1], "<=", linear[1]),
            ("films: AUC of DeepFM", found["films", "DeepFM"][0], ">=", 0.789),
            ("films: log loss of DeepFM", found["films", "DeepFM"][1], "<=", 0.551),
        ]
        asked += [
            (f"{name}: log loss of {kind}", found[name, kind][1], "<=",
             found[name, "LinearClassifier"][1])
            for name in names[1:] for kind in ("FMClassifier", "DeepFM")
        ]  # fmt: skip
    bars(*asked)


if __name__ == "__main__":
    main()
