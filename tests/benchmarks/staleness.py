"""The distance of replicas under a bound, and the staleness of gradients: never beyond it.

    python tests/benchmarks/staleness.py [--steps N] [--quick]

Four replicas in processes of their own, with unequal rows, take `--steps` steps of batches of four
rows, in mapped memory and each over a stream of its own. The clocks are read in the window when a
step begins. Updates are counted between pull and push, independently of the clocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import dask
import dask.array as da
import numpy as np

from dps import Async, LinearClassifier
from measure import bars, cluster, options, table

REPLICAS, FEATURES, BATCH = 4, 8, 4
#: Rows of each replica, as shares.
SHARES = (4, 3, 2, 1)
WAYS = (("mapped", 0), ("mapped", 1), ("mapped", 8), ("stream", 0), ("stream", 8))


def fits(steps: int, rows: int, beyond: list[str]) -> Iterator[tuple[str, ...]]:
    """A line for each way; those that were beyond a bound are noted."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, FEATURES))
    y = (X[:, 0] + rng.logistic(size=rows) > 0).astype(int)
    chunks = tuple(rows * share // sum(SHARES) for share in SHARES)
    epochs = max(1, steps * BATCH // rows)
    with cluster(REPLICAS) as client:
        data = client.persist((da.from_array(X, (chunks, FEATURES)), da.from_array(y, (chunks,))))
        for access, max_delay in WAYS:
            mode = Async(max_delay=max_delay, access=access)
            model = LinearClassifier(
                mode=mode, optimizer="sgd", learning_rate=1e-3, batch_size=BATCH, tol=None,
                max_iter=epochs, client=client, random_state=0,
            )  # fmt: skip
            with dask.config.set({"dps.rebalance": False, "dps.timeout": 600.0}):
                model.fit(*data)
            ranks = model.plan_.ranks
            allowed = mode.max_staleness(len(ranks))
            assert allowed is not None
            distance = max(epoch["clock_distance_max"] for epoch in model.history_)
            stale = max(epoch["staleness_max"] for epoch in model.history_)
            name = f"{access}, max_delay={max_delay}"
            if distance > max_delay or stale > allowed:
                beyond.append(name)
            taken = epochs * sum(rank.steps for rank in ranks)
            yield name, f"{taken:,}", str(len(ranks)), f"{distance:g}", f"{stale:g}", str(allowed)


def main() -> None:
    chosen = options(__doc__, repeat=1, steps=10_000_000)
    beyond: list[str] = []
    rows = 4_000 if chosen.quick else 200_000
    table(
        ("", "steps", "replicas", "steps ahead, most", "staleness, most", "allowed"),
        fits(4_000 if chosen.quick else chosen.steps, rows, beyond),
    )
    bars(("fits that were beyond a bound", len(beyond), "<=", 0))


if __name__ == "__main__":
    main()
