"""The cost of checkpoints and snapshots: seconds of epochs with them, against without.

    python tests/benchmarks/checkpoint.py [--pairs N] [--rows N] [--epochs N] [--quick]

A network of 10 million parameters by Adam, so that a checkpoint has 120 MB, one each 10 s, on a
LocalCluster of two processes with one thread each: at the ends of epochs; and the same rows as one
long epoch, with snapshots in memory each 10 s, and with checkpoints of these and of the state
before the epoch. A pair is the same fit with and without, in turns; medians of the pairs'
ratios. Seconds are those of closed epochs: the path that is tried before the first, and the
checkpoint after the last, are no part of them. The files go to ``checkpoints`` in the working
directory, since where temporary files lie may be memory.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dps
from measure import bars, cluster, options, table

UNITS, COLUMNS, BATCH, EVERY, BAR = (2200, 2200, 2200), 100, 256, 10, 0.02


def network(epochs: int, folder: Path | None, snapshot_every: float | None) -> float:
    """Return the seconds of a fit's epochs; a folder gets a checkpoint every 10 s.

    A single epoch has as many rows as all epochs of the other fits together.
    """
    checkpoint = None if folder is None else dps.Checkpoint(folder, every=every)
    model = dps.MLPClassifier(
        units, optimizer="adam", average=False, early_stopping=False, tol=None, max_iter=epochs,
        batch_size=BATCH, random_state=0, checkpoint=checkpoint,
        mode=dps.Sync(snapshot_every=snapshot_every),
    )  # fmt: skip
    times = 1 if epochs > 1 else chosen_epochs
    model.fit(np.tile(X, (times, 1)), np.tile(y, times))
    return float(sum(epoch["seconds"] for epoch in model.history_))


def cost(fit: Callable[[bool], float], folder: Path) -> tuple[Any, ...]:
    """Return the median seconds without checkpoints, their number and MB, and the added seconds."""
    spent: dict[bool, list[float]] = {True: [], False: []}
    taken, size = "", ""
    for pair in range(pairs + 1):  # the first is a warm-up
        for with_them in (True, False) if pair % 2 else (False, True):
            spent[with_them].append(fit(with_them))
        if folder.exists():
            names = sorted(path.name for path in folder.iterdir())
            nbytes = [sum(f.stat().st_size for f in (folder / name).iterdir()) for name in names]
            taken = names[-1].partition("-")[0].lstrip("0")  # they are numbered from 1
            size = f"{max(nbytes) / 1e6:.0f}"
            shutil.rmtree(folder)
    ratios = [a / b - 1 for a, b in zip(spent[True][1:], spent[False][1:], strict=True)]
    return statistics.median(spent[False][1:]), taken, size, statistics.median(ratios)


if __name__ == "__main__":
    chosen = options(__doc__, repeat=1, rows=4096, pairs=5, epochs=25)
    rows, pairs, chosen_epochs = chosen.rows, chosen.pairs, chosen.epochs
    units, every = UNITS, float(EVERY)
    if chosen.quick:
        rows, pairs, chosen_epochs, units, every = 2000, 1, 4, (16,), 0.0
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, COLUMNS)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    folder = Path("checkpoints").resolve()
    cases: dict[str, Callable[[bool], float]] = {
        "checkpoints": lambda asked: network(chosen_epochs, folder if asked else None, every),
        "snapshots within an epoch": lambda asked: network(1, None, every if asked else None),
        "checkpoints within an epoch": lambda asked: network(
            1, folder if asked else None, every if asked else None
        ),
    }
    with cluster():
        found = {name: cost(fit, folder) for name, fit in cases.items()}
    table(
        ("", "s without", "checkpoints", "MB each", "slower by"),
        [(name, f"{s:.2f}", taken, size, f"{more:+.1%}")
         for name, (s, taken, size, more) in found.items()],
    )  # fmt: skip
    bars(*((f"{name}: training slows by", f[-1], "<=", BAR) for name, f in found.items()))
