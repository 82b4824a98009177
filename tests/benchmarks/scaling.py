"""Two replicas against one in each mode, dense and CSR, beside what the memory allows.

    python tests/benchmarks/scaling.py [--repeat K] [--slow-timers] [--quick]

The data lies on a LocalCluster of two processes with one thread each. All rows of a single replica
move to its worker before its clock starts. The tables compare the median seconds of an epoch with
what the machine allows, everything else at its defaults. For dense rows that is the speed at which
one process, and both at once, read the same numbers. For CSR it is "passes apart": passes of the
gradient's kernel in processes that exchange nothing, one after the other and at once. A virtual
machine does not always have both cores to itself: a pair of fits counts only if the passes apart
before and after it were at most a tenth slower than the fastest of the run. Everything is
interleaved; medians. With --slow-timers Dask's processes sample no stacks, and look after their
event loops twice a second instead of fifty times.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from typing import Any

import numpy as np
from distributed import Client, Future, get_worker

from dense import make
from dps import LinearClassifier
from dps.data.feed.blocks import features_of
from dps.losses import LogLoss
from dps.models.linear import LinearModel
from flights import DATA, on_cluster, read_flights, split
from measure import MODES, SLOW_TIMERS, bars, cluster, options, read_speed, table

#: Passes apart on a calm machine, over the fastest of the run.
CALM = 1.1
#: Pairs of fits that are tried for each one that counts.
TRIED = 3

Pairs = dict[str, list[tuple[float, float]]]


def passes_apart(passes: int = 5) -> float:
    """Median seconds in which the kernel of a gradient passes over the CSR rows of this worker."""
    blocks = [block for block in dict(get_worker().data).values() if hasattr(block, "indptr")]
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


def epochs(client: Client, data: Any, mode: str, turn: int) -> tuple[float, float]:
    """Median seconds of an epoch, of one replica and of two."""
    one, two = (
        LinearClassifier(mode=mode, client=client, n_replicas=n, random_state=turn).fit(*data)
        for n in (1, 2)
    )
    return tuple(statistics.median(r["seconds"] for r in m.history_) for m in (one, two))


def reading(client: Client) -> tuple[float, float]:
    """Seconds that reading a byte takes, on one worker and on all at once."""
    workers = list(client.has_what())
    return 1 / read_speed(client, workers[:1]), 1 / read_speed(client)


def apart(client: Client) -> tuple[float, float]:
    """Seconds of a pass over all CSR rows by workers one after the other, and at once."""

    def submit(worker: str) -> Future:
        return client.submit(passes_apart, workers=[worker], pure=False)

    workers = list(client.has_what())
    alone = sum(submit(worker).result() for worker in workers)
    return alone, max(client.gather([submit(worker) for worker in workers]))


def compare_dense(client: Client, data: Any, repeat: int) -> Pairs:
    """Seconds of one and of two, by mode; and of reading."""
    found: Pairs = defaultdict(list)
    for turn in range(repeat):
        found["reading"].append(reading(client))
        for mode in MODES:
            found[mode].append(epochs(client, data, mode, turn))
    return found


def compare_csr(client: Client, data: Any, repeat: int) -> Pairs:
    """Seconds of one and of two, by mode; and of passes apart. Of calm moments."""
    tried: list[tuple[str, tuple[float, float]]] = []
    for mode in MODES:
        epochs(client, data, mode, 0)  # to warm up
    around = [apart(client)]
    for turn in range(TRIED * repeat):
        for mode in MODES:
            tried.append((mode, epochs(client, data, mode, turn)))
            around.append(apart(client))
    fastest = np.min(around, axis=0)
    calm = (np.array(around) <= CALM * fastest).all(axis=1)
    found: Pairs = {name: [] for name in ("passes apart", *MODES)}
    found["passes apart"] = [pair for pair, kept in zip(around, calm, strict=True) if kept]
    for (mode, pair), *beside in zip(tried, calm, calm[1:], strict=False):
        if all(beside):
            found[mode].append(pair)
    counted = ", ".join(f"{len(found[mode])} of {mode}" for mode in MODES)
    print(f"calm: {counted}, of {TRIED * repeat} pairs each\n")
    return found


def report(kind: str, found: Pairs) -> dict[str, float]:
    """Print medians; times faster with two."""
    gains, rows = {}, []
    for name, pairs in found.items():
        if not pairs:
            continue  # it was never calm
        one, two = (statistics.median(times) for times in zip(*pairs, strict=True))
        gains[name] = one / two
        if name == "reading":
            row = ("reading, GB/s", f"{1e-9 / one:.1f}", f"{1e-9 / two:.1f}")
        else:
            row = (f"dps {name}" if name in MODES else name, f"{1e3 * one:.1f}", f"{1e3 * two:.1f}")
        rows.append((*row, f"{gains[name]:.2f}"))
    table((kind, "ms an epoch: one replica", "two", "times faster"), rows)
    return gains


def main() -> None:
    chosen = options(__doc__, repeat=9, slow_timers=False)
    asked = []
    with cluster(config=SLOW_TIMERS if chosen.slow_timers else None) as client:
        data = make(client, 20_000 if chosen.quick else 1_000_000)
        gains = report("dense", compare_dense(client, data, chosen.repeat))
        memory = gains.pop("reading")
        asked += [
            (f"dense {mode}: gain as a share of the memory's", gain / memory, ">=", 0.9)
            for mode, gain in gains.items()
        ]
        if DATA.exists():
            del data
            X, y, *_ = split(*read_flights(20_000 if chosen.quick else None))
            data = on_cluster(client, X, y)
            gains = report("CSR (flights)", compare_csr(client, data, chosen.repeat))
            asked += [(f"CSR {mode}: gain", gains.get(mode, math.nan), ">=", 1.8) for mode in MODES]
        else:
            print("flights: the data is not here, left out\n")
    bars(*asked)


if __name__ == "__main__":
    main()
