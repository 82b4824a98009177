"""Two replicas against one in each mode, dense and CSR, beside what the memory allows.

    python tests/benchmarks/scaling.py [--repeat K] [--quick]

The same data lies on a LocalCluster of one process and on one of two, one thread each. Compared
are the median seconds of an epoch, everything at its defaults; and the speed at which the one and
both together read the same numbers. "passes apart" are those of the gradient's kernel over CSR rows
by processes that exchange nothing: what two cores are at best worth. Everything is interleaved;
medians.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Any

import numpy as np
from distributed import Client

from dense import make
from dps import LinearClassifier
from dps.data.blocks import features_of
from dps.losses import LogLoss
from dps.models.linear import LinearModel
from dps.modes import MODES
from flights import DATA, on_cluster, read_flights, split
from measure import bars, cluster, options, read_speed, table


def passes_apart(dask_worker: Any, passes: int = 5) -> float:
    """Median seconds in which the kernel of a gradient passes over the CSR rows of a worker."""
    blocks = [block for block in dict(dask_worker.data).values() if hasattr(block, "indptr")]
    model = LinearModel(
        loss=LogLoss(), n_features=blocks[0].shape[1], n_outputs=1, fit_intercept=True, dtype="f4"
    )
    params, grad = model.initial(), model.initial()
    rows = [
        (features_of(block, "f4").block(np.ones((block.shape[0], 1), "f4"), None), block.shape[0])
        for block in blocks
    ]
    seconds = []
    for _ in range(passes):
        began = time.perf_counter()
        for block, length in rows:
            model.kernel.add_batch(block, None, 0, length, params, grad)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def compare(clients: tuple[Client, Client], data: Any, repeat: int) -> dict[str, list[float]]:
    """Median seconds of an epoch on one worker and on two by mode; and reading, bytes a second."""
    found: dict[str, list[list[float]]] = defaultdict(lambda: [[], []])
    for turn in range(repeat):
        for place, client in enumerate(clients):
            found["reading"][place].append(read_speed(client))
            if hasattr(data[place][0]._meta, "indptr"):
                apart = client.run(passes_apart).values()
                found["passes apart"][place].append(max(apart))
        for mode in MODES:
            for place, (client, (X, y)) in enumerate(zip(clients, data, strict=True)):
                model = LinearClassifier(mode=mode, client=client, random_state=turn).fit(X, y)
                epoch = statistics.median(record["seconds"] for record in model.history_)
                found[mode][place].append(epoch)
    return {name: [statistics.median(v) for v in values] for name, values in found.items()}


def report(kind: str, found: dict[str, list[float]]) -> tuple[dict[str, float], float]:
    """Print; times faster with two replicas by mode, and the ratio of reading."""
    one, two = found.pop("reading")
    gains = {name: alone / both for name, (alone, both) in found.items()}
    table(
        (kind, "ms an epoch: one replica", "two", "times faster"),
        [
            (
                f"dps {name}" if name in MODES else name,
                f"{1e3 * alone:.1f}",
                f"{1e3 * both:.1f}",
                f"{gains[name]:.2f}",
            )
            for name, (alone, both) in found.items()
        ]
        + [("reading, GB/s", f"{one / 1e9:.1f}", f"{two / 1e9:.1f}", f"{two / one:.2f}")],
    )
    return {mode: gains[mode] for mode in MODES}, two / one


def main() -> None:
    chosen = options(__doc__, repeat=9)
    asked = []
    with cluster(1) as one, cluster(2) as two:
        clients = one, two
        rows = 20_000 if chosen.quick else 1_000_000
        data = [make(client, rows) for client in clients]
        gains, memory = report("dense", compare(clients, data, chosen.repeat))
        asked += [
            (f"dense {mode}: gain as a share of the memory's", gain / memory, ">=", 0.9)
            for mode, gain in gains.items()
        ]
        if DATA.exists():
            del data
            X, y, *_ = split(*read_flights(20_000 if chosen.quick else None))
            data = [on_cluster(client, X, y) for client in clients]
            gains, _ = report("CSR (flights)", compare(clients, data, chosen.repeat))
            asked += [(f"CSR {mode}: gain", gain, ">=", 1.8) for mode, gain in gains.items()]
        else:
            print("flights: the data is not here, left out\n")
    bars(*asked)


if __name__ == "__main__":
    main()
