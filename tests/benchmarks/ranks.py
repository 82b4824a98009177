"""More replicas than cores: the time of a step over that of as many replicas as cores.

    python tests/benchmarks/ranks.py [--repeat K] [--quick]

The same rows and steps of a linear model. A gradient takes a few microseconds, so the figures show
how ranks wait for each other. Replicas are threads of this process, or tasks of a LocalCluster
of one process per core, which reach the shard in mapped memory or by TCP. All of it on an idle
machine, and beside one and two busy loops per core. Interleaved; medians of epochs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from distributed import Client

import dps
from dps._cores import usable_cores
from dps.cluster.choice import in_this_process
from measure import bars, cluster, options, table

WAYS = ("threads", "mapped", "stream")
TIMES = (1, 2, 4, 8, 16)


@contextmanager
def neighbours(n: int) -> Iterator[None]:
    """Run busy loops beside the block."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def milliseconds(way: str, client: Client, n: int, data: Any, epochs: int) -> float:
    """Median time of a step."""
    mode = dps.Sync(access="stream" if way == "stream" else "auto")
    model = dps.LinearRegressor(
        mode=mode, n_replicas=n, optimizer="adagrad", batch_size=BATCH, max_iter=epochs, tol=None
    )
    if way == "threads":
        with in_this_process():
            model.fit(*data)
    else:
        model.set_params(client=client).fit(*data)
    steps = len(data[1]) / BATCH
    return 1e3 * statistics.median(record["seconds"] for record in model.history_) / steps


BATCH = 64


def main() -> None:
    chosen = options(__doc__, repeat=3)
    cores = usable_cores()
    X = np.random.default_rng(0).normal(size=(1 << (12 if chosen.quick else 15), 20))
    data, epochs = (X, X[:, 0]), 3
    times, loops = (TIMES[:2], (0,)) if chosen.quick else (TIMES, (0, 1, 2))
    found: dict[tuple[int, str, int], float] = {}
    with cluster(cores) as client:
        for busy in loops:
            with neighbours(busy * cores):
                turns: dict[tuple[int, str, int], list[float]] = {}
                for _ in range(chosen.repeat):
                    for many in times:
                        for way in WAYS:
                            spent = milliseconds(way, client, many * cores, data, epochs)
                            turns.setdefault((busy, way, many), []).append(spent)
                found |= {key: statistics.median(each) for key, each in turns.items()}
    table(
        ("busy loops per core, way; ms of a step",
         *(f"{many * cores} replicas on {cores} cores" for many in times)),
        [
            (f"{busy}, {way}", *(f"{found[busy, way, many]:.3f}" for many in times))
            for busy in loops
            for way in WAYS
        ],
    )  # fmt: skip
    bars(
        *((f"{busy} busy loops, {many * cores} replicas: mapped over stream",
           found[busy, "mapped", many] / found[busy, "stream", many], "<=", 1.0)
          for busy in loops for many in times),
        *((f"idle, {many * cores} replicas over {cores}: threads",
           found[0, "threads", many] / found[0, "threads", 1], "<=", bar)
          for many, bar in ((4, 1.5), (16, 2.5)) if many in times),
    )  # fmt: skip


if __name__ == "__main__":
    main()
