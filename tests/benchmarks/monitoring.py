"""The cost of monitoring: CPU time of fits that are watched, against the same unwatched.

    python tests/benchmarks/monitoring.py [--pairs N] [--rows N] [--quick]

A dense linear fit at defaults, 1M x 100, and a loop of synchronous steps of 1,024 rows a replica,
on a LocalCluster of two processes with one thread each. CPU time is that of all processes, the
scheduler's and the client's included, between the start of a fit and its end; a pair is the same
fit with Dask's setting ``dps.monitor`` on and off, in turns. Medians of the pairs' ratios. Waiting
is spinning in part, and part of the CPU time too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import dask
import psutil

from dense import make
from dps import LinearClassifier
from measure import bars, cluster, options, processes, table

BATCH, BAR = 1024, 0.02


def cpu_seconds(pids: list[int]) -> float:
    """CPU seconds of processes and their threads since they began."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(time.user + time.system for time in times)


def cost(fit: Callable[[], Any], pids: list[int], pairs: int) -> tuple[float, float]:
    """Median CPU seconds unwatched, and what watching adds to them in the median pair."""
    spent: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs + 1):  # the first is a warm-up
        for watched in (True, False) if pair % 2 else (False, True):
            with dask.config.set({"dps.monitor": watched}):
                before = cpu_seconds(pids)
                fit()
                spent[watched].append(cpu_seconds(pids) - before)
    ratios = [on / off - 1 for on, off in zip(spent[True][1:], spent[False][1:], strict=True)]
    return statistics.median(spent[False][1:]), statistics.median(ratios)


def main() -> None:
    chosen = options(__doc__, repeat=1, rows=1_000_000, pairs=15, epochs=40)
    rows, pairs, epochs = chosen.rows, chosen.pairs, chosen.epochs
    if chosen.quick:
        rows, pairs, epochs = 20_000, 1, 2
    found = {}
    with cluster() as client:
        X, y = make(client, rows)
        pids = processes(client)
        several = 1 if chosen.quick else 10  # clocks of processes tick a hundred times a second

        def dense() -> None:
            for seed in range(several):
                LinearClassifier(random_state=seed).fit(X, y)

        def steps() -> None:
            LinearClassifier(
                mode="sync", optimizer="sgd", learning_rate=0.1, batch_size=2 * BATCH, tol=None,
                max_iter=epochs, random_state=0,
            ).fit(X, y)  # fmt: skip

        found[f"dense fits, {rows:,} x 100"] = cost(dense, pids, pairs)
        found[f"synchronous steps, {epochs} epochs"] = cost(steps, pids, pairs)
    table(
        ("", "CPU s unwatched", "watched takes more"),
        ((name, f"{seconds:.2f}", f"{more:+.1%}") for name, (seconds, more) in found.items()),
    )
    bars(*((f"monitoring: {name}", more, "<=", BAR) for name, (_, more) in found.items()))


if __name__ == "__main__":
    main()
