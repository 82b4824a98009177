"""Click logs at defaults beside Vowpal Wabbit and scikit-learn: log loss on the next day.

    python tests/benchmarks/clicks.py [--rows N] [--seeds N] [--only peers days files] [--quick]

Days of ``examples/data/click_logs.py``, whole, in the memory of one process; counts as they are,
and as logarithms. Vowpal Wabbit passes once over its own text on one core, with 2^22 weights (``pip
install vowpalwabbit``), and then with all pairs of words. scikit-learn hashes into 2^22 columns
for one pass of `SGDClassifier`. LightGBM has its defaults, and the words are categories. The model
in PyTorch is DLRM, "Deep Learning Recommendation Model" (Naumov et al., 2019), with 16 factors,
layers of 64 and 32, and Adagrad, after one epoch.

Then how a model of 2^14 buckets for each column of strings goes on (2^8 for up to 10,000 rows). It
is fitted to the first day and predicts the third: without the second, after `partial_fit` of it in
one call or in calls of 1,000 rows, and fitted to both days.

Last, from a file of Parquet to a model on two workers of 2 GB, beside one pass of Vowpal Wabbit
over its own text file; of more than two million rows to the linear model alone. Memory is the most
that a worker had of its own.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from dps import FMClassifier, LinearClassifier
from dps.preprocessing import FrameEncoder
from measure import MB, Peak, bars, installed, options, table, timed

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "data"))
from click_logs import make_day

Day = tuple[pd.DataFrame, Any]
LINEAR, FM, DEEP = "dps LinearClassifier", "dps FMClassifier", "dps FMClassifier((64, 32))"
VW, SKLEARN = "Vowpal Wabbit", "scikit-learn SGDClassifier"
PAIRS, TREES, DLRM = "Vowpal Wabbit -q ww", "LightGBM", "PyTorch, DLRM"
FACTORS, LAYERS, BATCH, RATE = 16, (64, 32), 256, 0.02
LOGARITHMS = ", logarithms"
#: Rows above which a file trains the linear model alone, and up to which it trains two models.
MOST_ROWS, FEW_ROWS = 2_000_000, 1_200
PART = 100_000  # rows that are written together


def split(day: pd.DataFrame) -> Day:
    return day.drop(columns="clicked"), day["clicked"].to_numpy()


def logarithms(X: pd.DataFrame) -> pd.DataFrame:
    return X.assign(**{name: np.log1p(X[name]) for name in X if name.startswith("count")})


def ours(model: Any) -> Callable[[Day, pd.DataFrame], Any]:
    return lambda day, coming: model.fit(*day).predict_proba(coming)[:, 1]


def pairs(X: pd.DataFrame) -> Iterator[tuple[list[str], list[tuple[str, float]]]]:
    """The words of each row, and its counts by name."""
    numbers = [name for name in X if name.startswith("count")]
    words = [name for name in X if not name.startswith("count")]
    for texts, values in zip(
        X[words].to_numpy(object), np.nan_to_num(X[numbers].to_numpy(float)), strict=True
    ):
        named = [f"{name}={text}" for name, text in zip(words, texts, strict=True)]
        yield named, [(name, v) for name, v in zip(numbers, values, strict=True) if v]


def lines(X: pd.DataFrame) -> Iterator[str]:
    """Rows as Vowpal Wabbit reads them."""
    for words, numbers in pairs(X):
        values = " ".join(f"{name}:{value:.6g}" for name, value in numbers)
        yield f"|n {values} |w {' '.join(words)}"


def vowpal_wabbit(day: Day, coming: pd.DataFrame, more: str = "") -> Any:
    from vowpalwabbit import Workspace  # type: ignore[import-not-found]

    model = Workspace(f"--loss_function logistic -b 22 --quiet {more}")
    for line, clicked in zip(lines(day[0]), day[1], strict=True):
        model.learn(f"{1 if clicked else -1} {line}")
    raw = np.array([model.predict(line) for line in lines(coming)])
    return 1 / (1 + np.exp(-raw))


def scikit_learn(day: Day, coming: pd.DataFrame) -> Any:
    hasher = FeatureHasher(2**22, input_type="pair", alternate_sign=False)

    def hashed(X: pd.DataFrame) -> Any:
        rows = ([*((word, 1.0) for word in words), *numbers] for words, numbers in pairs(X))
        return hasher.transform(rows)

    model = SGDClassifier(loss="log_loss", max_iter=1, tol=None, random_state=0)
    return model.fit(hashed(day[0]), day[1]).predict_proba(hashed(coming))[:, 1]


def light_gbm(day: Day, coming: pd.DataFrame) -> Any:
    from lightgbm import LGBMClassifier  # type: ignore[import-not-found]

    X, y = day
    known = {name: X[name].unique() for name in X if "word" in name}
    kinds = {name: pd.CategoricalDtype(values) for name, values in known.items()}
    model = LGBMClassifier(random_state=0, verbose=-1).fit(X.astype(kinds), y)
    of_day = {name: coming[name].where(coming[name].isin(known[name])) for name in known}
    return model.predict_proba(coming.assign(**of_day).astype(kinds))[:, 1]


def dlrm(day: Day, coming: pd.DataFrame) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    X, y = day[0], torch.from_numpy(day[1].astype(np.float32))
    words, numbers = ([name for name in X if kind in name] for kind in ("word", "count"))
    known = {name: pd.Index(X[name].unique()) for name in words}
    starts = np.cumsum([0, *(1 + len(values) for values in known.values())])

    def inputs(X: pd.DataFrame) -> tuple[Any, Any]:
        codes = [known[name].get_indexer(X[name]) + 1 for name in words]  # 0 is unknown
        dense = np.arcsinh(np.nan_to_num(X[numbers].to_numpy(np.float32)))
        return torch.from_numpy(np.stack(codes, axis=1) + starts[:-1]), torch.from_numpy(dense)

    def layers(*sizes: int) -> Any:
        pairs = itertools.pairwise(sizes)
        return nn.Sequential(*itertools.chain(*((nn.Linear(*pair), nn.ReLU()) for pair in pairs)))

    table = nn.EmbeddingBag(int(starts[-1]), FACTORS, mode="sum", sparse=True)
    nn.init.normal_(table.weight, std=0.01)
    bottom = layers(len(numbers), LAYERS[0], FACTORS)
    upper = torch.triu_indices(1 + len(words), 1 + len(words), 1)
    top = nn.Sequential(layers(upper.shape[1] + FACTORS, *LAYERS), nn.Linear(LAYERS[-1], 1))

    def raw(codes: Any, dense: Any) -> Any:
        below = bottom(dense)
        vectors = table(codes.reshape(-1, 1)).reshape(len(codes), -1, FACTORS)
        vectors = torch.cat([below[:, None], vectors], 1)
        products = (vectors @ vectors.transpose(1, 2))[:, upper[0], upper[1]]
        return top(torch.cat([below, products], 1))[:, 0]

    parameters = [*table.parameters(), *bottom.parameters(), *top.parameters()]
    optimizer = torch.optim.Adagrad(parameters, lr=RATE)
    codes, dense = inputs(X)
    for rows in torch.randperm(len(y)).split(BATCH):
        optimizer.zero_grad()
        found = raw(codes[rows], dense[rows])
        nn.functional.binary_cross_entropy_with_logits(found, y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        return torch.sigmoid(raw(*inputs(coming))).numpy()


def contenders() -> dict[str, Callable[[Day, pd.DataFrame], Any]]:
    peers: dict[str, Any] = {}
    if installed("Vowpal Wabbit", "vowpalwabbit"):
        peers |= {VW: vowpal_wabbit, PAIRS: functools.partial(vowpal_wabbit, more="-q ww")}
    if installed("LightGBM", "lightgbm"):
        peers[TREES] = light_gbm
    if installed("PyTorch", "torch"):
        peers[DLRM] = dlrm
    return {
        LINEAR: ours(LinearClassifier(random_state=0)),
        FM: ours(FMClassifier(random_state=0)),
        DEEP: ours(FMClassifier(hidden_layer_sizes=(64, 32), random_state=0)),
        **peers,
        SKLEARN: scikit_learn,
    }


def gone_on(model: Any, day: Day, rows: int) -> Any:
    """Return a copy of a fitted model after `partial_fit` of a day, `rows` rows per call."""
    model, (X, y) = copy.deepcopy(model), day
    for first in range(0, len(y), rows):
        part = slice(first, first + rows)
        model.partial_fit(X[part], y[part])
    return model


def next_days(rows: int, seeds: int) -> None:
    """Log loss of the third day."""
    kinds = {
        LINEAR: LinearClassifier,
        FM: FMClassifier,
        DEEP: functools.partial(FMClassifier, hidden_layer_sizes=(64, 32)),
    }
    found: dict[str, list[list[float]]] = {name: [] for name in kinds}
    for seed in range(seeds):
        days = [split(make_day(rows, day, seed)) for day in range(2)]
        coming, clicked = split(make_day(max(rows // 3, 500), 2, seed))
        both = pd.concat([days[0][0], days[1][0]]), np.concatenate([days[0][1], days[1][1]])
        for name, kind in kinds.items():
            encoder = FrameEncoder(n_buckets=2**14 if rows > 10_000 else 2**8)
            options = {"random_state": 0, "encoder": encoder}
            first = kind(**options).fit(*days[0])
            models = [first, *(gone_on(first, days[1], part) for part in (rows, 1000))]
            models.append(kind(**options).fit(*both))
            found[name].append(
                [log_loss(clicked, model.predict_proba(coming)[:, 1]) for model in models]
            )
    means = {name: np.mean(values, axis=0) for name, values in found.items()}
    print(f"\n{rows:,} rows a day, means over {seeds} seeds\n")
    table(
        ("", "the first day", "and the second", "in calls of 1,000 rows", "both by one fit"),
        ([name, *(f"{loss:.4f}" for loss in losses)] for name, losses in means.items()),
    )
    bars(
        *(
            (
                f"clicks: {name} after the second day over before",
                max(losses[1:3]) / losses[0],
                "<=",
                1.0,
            )
            for name, losses in means.items()
        )
    )


def beside_peers(rows: int, seeds: int) -> None:
    """Log loss of the next day."""
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        X, y = split(make_day(rows, 0, seed))
        coming, clicked = split(make_day(max(rows // 3, 500), 1, seed))
        rate = np.full(len(clicked), y.mean())
        found.setdefault("the rate of clicks", []).append((log_loss(clicked, rate), 0.0))
        for name, predict in contenders().items():
            for kind in ("", LOGARITHMS):
                as_is = (X, coming) if not kind else (logarithms(X), logarithms(coming))
                began = time.perf_counter()
                chances = predict((as_is[0], y), as_is[1])
                seconds = time.perf_counter() - began
                found.setdefault(name + kind, []).append((log_loss(clicked, chances), seconds))
    means = {name: np.mean(values, axis=0) for name, values in found.items()}
    nothing = [np.nan]
    peers = [means.get(VW + kind, nothing)[0] for kind in ("", LOGARITHMS)]
    print(f"{rows:,} rows, means over {seeds} seeds\n")
    table(
        ("", "log loss", f"over {VW}'s", "seconds"),
        (
            (
                name, f"{loss:.4f}", f"{loss / peers[name.endswith(LOGARITHMS)]:.3f}",
                f"{seconds:.1f}",
            )
            for name, (loss, seconds) in means.items()
        ),
    )  # fmt: skip
    asked = ((LINEAR, 1.0), (FM, 0.99), (DEEP, 0.985))
    bars(
        *(
            (f"clicks: {name}{kind} over {VW}", means[name + kind][0] / peer, "<=", bar)
            for name, bar in asked
            for kind, peer in zip(("", LOGARITHMS), peers, strict=True)
        )
    )


def on_workers(model: Any, path: Path) -> tuple[float, float, Any]:
    """Seconds of a fit to a file on two workers, the most memory of one, and the model."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="2GB", dashboard_address=":0"
        ) as workers,
        Client(workers) as client,
    ):
        pids = list(client.run(os.getpid).values())
        client.run(importing)
        day = dd.read_parquet(path, split_row_groups=True)
        with Peak(pids[:1], 0.05) as first, Peak(pids[1:], 0.05) as second:
            seconds, _ = timed(model.fit, day.drop(columns="clicked"), day["clicked"])
        return seconds, max(first.peak, second.peak), model


def importing() -> None:
    """Load what a fit needs: a worker does so once."""
    import pyarrow.parquet  # noqa: F401

    import dps.cluster.dask.fit
    import dps.training.replica.replica  # noqa: F401


def pass_over_text(path: Path) -> float:
    """Seconds of a pass of Vowpal Wabbit over a file."""
    from vowpalwabbit import Workspace

    began = time.perf_counter()
    Workspace(f"--loss_function logistic -b 22 --quiet -d {path}").finish()
    return time.perf_counter() - began


def from_files(rows: int, seeds: int) -> None:
    """Rows a second and memory from a file to a model."""
    X, y = split(whole := make_day(rows))
    coming, clicked = split(make_day(20_000, 1))
    models = {
        LINEAR: LinearClassifier(random_state=0),
        "dps, alpha='cv'": LinearClassifier(alpha="cv", random_state=0),
        "dps, 2^18 buckets a column": LinearClassifier(
            encoder=FrameEncoder(n_buckets=2**18), random_state=0
        ),
        "dps, 2^22 shared buckets": LinearClassifier(
            encoder=FrameEncoder(n_buckets=2**22, shared=True), random_state=0
        ),
        FM: FMClassifier(random_state=0),
        DEEP: FMClassifier(hidden_layer_sizes=(64, 32), random_state=0),
    }
    if rows > MOST_ROWS:
        models = {LINEAR: models[LINEAR]}
    if rows <= FEW_ROWS:
        models = dict([*models.items()][::3])
    found: dict[str, tuple[float, float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, text = Path(folder, "day.parquet"), Path(folder, "day.txt")
        whole.to_parquet(path, row_group_size=min(62_500, -(-rows // 16)))
        del whole
        for name, model in models.items():
            seconds, memory, fitted = on_workers(model, path)
            loss = log_loss(clicked, fitted.predict_proba(coming)[:, 1])
            found[name] = seconds, memory, loss
        if installed("Vowpal Wabbit", "vowpalwabbit"):
            with text.open("w") as file:
                for first in range(0, rows, PART):
                    some = slice(first, first + PART)
                    for line, one in zip(lines(X[some]), y[some], strict=True):
                        file.write(f"{1 if one else -1} {line}\n")
            found[VW] = pass_over_text(text), np.nan, np.nan
    print(f"\n{rows:,} rows from a file\n")
    table(
        ("", "seconds", "rows a second", "MB of a worker", "log loss"),
        (
            (name, f"{seconds:.1f}", f"{rows / seconds:,.0f}", f"{memory / MB:.0f}", f"{loss:.4f}")
            for name, (seconds, memory, loss) in found.items()
        ),
    )
    peer = found[VW][0] if VW in found else np.nan
    asked = ((LINEAR, 600), ("dps, 2^18 buckets a column", 1200))
    bars(
        *(
            (f"clicks: {name}, rows a second over {VW}", peer / found[name][0], ">=", 1.0)
            for name in (LINEAR, "dps, alpha='cv'")
            if name in found
        ),
        *(
            (f"clicks: {name}, MB of a worker", found[name][1] / MB, "<=", bar)
            for name, bar in asked
            if name in found and rows <= MOST_ROWS
        ),
    )


def main() -> None:
    parts = {"peers": beside_peers, "days": next_days, "files": from_files}
    chosen = options(__doc__ or "", repeat=1, rows=60_000, seeds=3, only=tuple(parts))
    rows, seeds = (FEW_ROWS, 1) if chosen.quick else (chosen.rows, chosen.seeds)
    for name, part in parts.items():
        if name in chosen.only:
            part(rows, seeds)


if __name__ == "__main__":
    main()
