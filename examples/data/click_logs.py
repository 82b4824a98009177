"""Click logs: a day to train on, the next to predict
===================================================

Makes two days of a click log, trains on the first and predicts the second::

    pip install -e ".[examples]" && python examples/data/click_logs.py [ROWS]

A row has 13 counts with gaps and long tails, and 26 strings with 10 to 1,000,000 values, of which
few are frequent. Eight columns of strings say much of the clicks, and one pair of columns.
"""

import sys
import tempfile
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster
from sklearn.metrics import log_loss, roc_auc_score

from dps import FMClassifier, LinearClassifier

NUMBERS = 13
VALUES = np.geomspace(10, 1_000_000, 26).astype(int)  # of each column of strings
PAIR = 4, 6  # columns whose values say more together


def effects(values: np.ndarray, column: int, seed: int) -> np.ndarray:
    """A number for each value of a column, drawn from a normal distribution by hashing."""
    mixed = values.astype(np.uint64) + np.uint64((column << 32) + (seed << 48))
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    high, low = (mixed >> np.uint64(32)) + np.uint64(1), mixed & np.uint64(0xFFFFFFFF)
    return np.sqrt(-2 * np.log(high / 2**32)) * np.cos(2 * np.pi * (low / 2**32))


def make_day(rows: int, day: int = 0, seed: int = 0) -> pd.DataFrame:
    """Make up a day of clicks; days of one seed are alike, but some rare values are new."""
    world, rng = np.random.default_rng([1, seed]), np.random.default_rng([2, seed, day])
    score, columns = np.full(rows, -1.6), {}
    for name in (f"count_{number}" for number in range(NUMBERS)):
        width, weight = world.uniform(0.7, 2.0), world.normal(scale=0.15)
        gaps = rng.random(rows) < world.choice([0, 0.05, 0.3])
        size = rng.normal(size=rows)
        score += np.where(gaps, 0.0, weight * size)
        columns[name] = np.where(gaps, np.nan, np.floor(np.exp(1 + width * size)))
    weights = world.permutation([0.35] * 8 + [0.08] * 18)
    drawn = []
    for column, n_values in enumerate(VALUES):
        # Zipf's law, and of twenty rare values one makes way for a new one each day.
        rank = np.exp(rng.random(rows) * np.log(n_values + 1)).astype(np.int64) - 1
        age = np.where(rank > 20, (day + (rank * 7919 + column) % 20) // 20, 0)
        drawn.append(rank + age * n_values)
        score += weights[column] * effects(drawn[-1], column, seed)
        known, codes = np.unique(drawn[-1], return_inverse=True)
        texts = [f"{value * 2_654_435_761 % 2**32:08x}" for value in known.tolist()]
        columns[f"word_{column}"] = pd.array(texts, dtype="str").take(codes)
    factors = [[effects(drawn[at], 100 + k * 100 + at, seed) for k in range(3)] for at in PAIR]
    score += 0.7 * np.sum(np.prod(factors, axis=0), axis=0) / np.sqrt(3)
    clicked = rng.random(rows) < 1 / (1 + np.exp(-score))
    return pd.DataFrame({"clicked": clicked, **columns})


def main(folder: Path, rows: int = 60_000) -> None:
    """Train on a day, predict the next one."""
    for day, n in enumerate((rows, 20_000)):
        make_day(n, day).to_parquet(folder / f"{day}.parquet", row_group_size=-(-n // 8))
    day = dd.read_parquet(folder / "0.parquet", split_row_groups=True)
    tomorrow = pd.read_parquet(folder / "1.parquet")
    X, y = day.drop(columns="clicked"), day["clicked"]
    coming, clicked = tomorrow.drop(columns="clicked"), tomorrow["clicked"]

    rate = np.full(len(clicked), y.mean().compute())
    print(f"{'':22} log loss    AUC")
    print(f"{'the rate of clicks':22} {log_loss(clicked, rate):.4f}")
    for model in LinearClassifier(random_state=0), FMClassifier(random_state=0):
        chances = model.fit(X, y).predict_proba(coming)[:, 1]
        scores = f"{log_loss(clicked, chances):.4f}  {roc_auc_score(clicked, chances):.3f}"
        print(f"{type(model).__name__:22} {scores}")


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        main(Path(folder), *map(int, sys.argv[1:]))

# %%
# It prints::
#
#                            log loss    AUC
#     the rate of clicks     0.6441
#     LinearClassifier       0.5125  0.793
#     FMClassifier           0.5150  0.790
