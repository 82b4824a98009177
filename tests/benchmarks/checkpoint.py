"""What checkpoints cost while training: seconds of epochs with them, against the same without.

    python tests/benchmarks/checkpoint.py [--pairs N] [--rows N] [--epochs N] [--quick]

A network of 10 million parameters by Adam, so that a checkpoint has 120 MB, one each 10 s, on a
LocalCluster of two processes with one thread each. A pair is the same fit with and without, in
turns; medians of the pairs' ratios. Seconds are those of closed epochs: the path that is tried
before the first, and the checkpoint after the last, are no part of them. The files go to
``checkpoints`` in the working directory, since where temporary files lie may be memory.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np

import dps
from measure import bars, cluster, options, table

UNITS, COLUMNS, BATCH, EVERY, BAR = (2200, 2200, 2200), 100, 256, 10, 0.02


def network(units: tuple[int, ...], epochs: int, path: Path | None, every: float) -> float:
    """Seconds of the epochs of a fit, with a checkpoint each `every` s if there is a path."""
    checkpoint = None if path is None else dps.Checkpoint(path, every=every)
    model = dps.MLPClassifier(
        units, solver="adam", average=False, early_stopping=False, tol=None, max_iter=epochs,
        batch_size=BATCH, random_state=0, checkpoint=checkpoint,
    )  # fmt: skip
    model.fit(X, y)
    return float(sum(epoch["seconds"] for epoch in model.history_))


def cost(
    fit: Callable[[Path | None], float], pairs: int, folder: Path
) -> tuple[float, float, int, float]:
    """Median seconds without; what checkpoints add in the median pair; how many, and their MB."""
    spent: dict[bool, list[float]] = {True: [], False: []}
    taken, size = 0, 0.0
    for pair in range(pairs + 1):  # the first is a warm-up
        for with_them in (True, False) if pair % 2 else (False, True):
            spent[with_them].append(fit(folder if with_them else None))
        names = sorted(path.name for path in folder.iterdir())
        taken = int(names[-1].partition("-")[0])  # they are numbered from 1
        size = sum(path.stat().st_size for path in (folder / names[-1]).iterdir()) / 1e6
        shutil.rmtree(folder)
    ratios = [a / b - 1 for a, b in zip(spent[True][1:], spent[False][1:], strict=True)]
    return statistics.median(spent[False][1:]), statistics.median(ratios), taken, size


if __name__ == "__main__":
    chosen = options(__doc__, repeat=1, rows=4096, pairs=5, epochs=25)
    rows, pairs, epochs = chosen.rows, chosen.pairs, chosen.epochs
    units, every = UNITS, float(EVERY)
    if chosen.quick:
        rows, pairs, epochs, units, every = 2000, 1, 4, (16,), 0.0
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, COLUMNS)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    with cluster():
        seconds, more, taken, size = cost(
            lambda path: network(units, epochs, path, every), pairs, Path("checkpoints").resolve()
        )
    table(
        ("", "s without", "checkpoints", "MB each", "slower by"),
        [(f"{epochs} epochs", f"{seconds:.2f}", str(taken), f"{size:.1f}", f"{more:+.1%}")],
    )
    bars(("checkpoint: training slows by", more, "<=", BAR))
