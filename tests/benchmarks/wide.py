"""A stochastic step on sparse rows by the width of the model: by keys, and as whole vectors.

    python tests/benchmarks/wide.py [--repeat K] [--quick]

65,536 rows of 32 float32 values each, columns as rare as words are (Zipf's law), two replicas of a
LocalCluster, sync and async, Adagrad with an L2 penalty, batches of 256. What a batch touches does
not depend much on the width, and neither should a step. Microseconds a step: the median epoch's
seconds over its steps; medians of interleaved runs.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

import numpy as np
import scipy.sparse
from distributed import Client

from dps import LinearClassifier
from dps.training.plan import batches
from flights import on_cluster
from measure import bars, cluster, options, table

BATCH, VALUES = 256, 32
#: What decides how steps are taken, set to either extreme.
WAYS = {"by keys": 0.0, "whole vectors": np.inf}
MODES = ("sync", "async")


def text(rows: int, width: int) -> tuple[Any, Any]:
    """Rows of words, hashed to a width, and labels that depend on the more frequent ones."""
    rng = np.random.default_rng(0)
    words = rng.zipf(1.3, size=(rows, VALUES)) % (1 << 32)
    columns = (words * 2_654_435_761 % (1 << 32) % width).astype(np.int32)
    values = np.full(rows * VALUES, VALUES**-0.5, np.float32)
    starts = np.arange(0, rows * VALUES + 1, VALUES, dtype=np.int32)
    X = scipy.sparse.csr_matrix((values, columns.ravel(), starts), shape=(rows, width))
    odd = (words % 2 * (words < 50)).sum(axis=1)
    return X, (odd > np.median(odd)).astype(np.int8)


def microseconds(client: Client, data: Any, mode: str) -> float:
    """Microseconds of a step, over all replicas together in sync, over one in async."""
    X, y = data
    model = LinearClassifier(
        optimizer="adagrad", batch_size=BATCH, mode=mode, max_iter=3, tol=None, client=client,
        random_state=0,
    ).fit(X, y)  # fmt: skip
    steps = max(rank.steps for rank in model.plan_.ranks)
    return 1e6 * statistics.median(record["seconds"] for record in model.history_) / steps


def main() -> None:
    chosen = options(__doc__, repeat=3)
    rows, widths = 65_536, [1 << 14, 1 << 17, 1 << 20]
    if chosen.quick:
        rows, widths = 2_048, [1 << 10, 1 << 12]
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    default = batches._COST_OF_A_KEY
    with cluster() as client:
        data = {width: on_cluster(client, *text(rows, width)) for width in widths}
        for _ in range(chosen.repeat):
            for way, cost in WAYS.items():
                batches._COST_OF_A_KEY = cost
                for mode in MODES:
                    for width in widths:
                        time = microseconds(client, data[width], mode)
                        found[way, mode, width].append(time)
    batches._COST_OF_A_KEY = default
    medians = {name: statistics.median(times) for name, times in found.items()}
    table(
        ("microseconds a step", *(f"{width:,} columns" for width in widths)),
        (
            (f"dps {mode}, {way}", *(f"{medians[way, mode, width]:,.0f}" for width in widths))
            for mode in MODES
            for way in WAYS
        ),
    )
    widest, narrowest = widths[-1], widths[0]
    bars(
        *(
            (f"wide {mode}: a step by keys, {widest // narrowest} times as wide, as a multiple",
             medians["by keys", mode, widest] / medians["by keys", mode, narrowest], "<=", 4)
            for mode in MODES
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
