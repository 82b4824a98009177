"""Figures of the pages, from fits on this machine, as SVG.

    python docs/pictures/make_figures.py [recovery] [losses] [many_hosts]

recovery: rows a second of two replicas, one of which is killed. losses: training loss by mode, with
one slow replica. many_hosts: the tables of speed-ups in docs/inside/scaling.md. Needs matplotlib
and two cores.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import dask.array as da
import matplotlib as mpl
import numpy as np
from browser import wait as until
from distributed import Client, LocalCluster, wait

import dps

mpl.use("svg")
from matplotlib import pyplot as plt

HERE = Path(__file__).resolve().parent
SCALING = HERE.parent / "inside" / "scaling.md"
_ROWS = 400_000
#: Seconds without a report after which a replica does not train.
_GAP = 0.6


def data() -> tuple[da.Array, da.Array]:
    """Rows of two classes, half of them on each worker."""
    random = da.random.RandomState(0)
    X = random.normal(size=(_ROWS, 100), chunks=(_ROWS // 8, 100)).astype("float32")
    noise = random.normal(size=_ROWS, chunks=_ROWS // 8)
    y = (X[:, :10].sum(axis=1) + 2 * noise > 0).astype("int8")
    return X, y


def recovery(client: Client) -> None:
    """A fit of which one worker is killed after three seconds."""
    X, y = (each.persist() for each in data())
    wait([X, y])
    seen: list[tuple[float, dict[str, float]]] = []
    workers: list[str] = []

    def heard(event: tuple[float, dict[str, Any]]) -> None:
        if event[1]["kind"] == "started":
            workers[:] = [replica["worker"] for replica in event[1]["replicas"]]
        if event[1]["kind"] == "replicas":
            paces = dict(zip(workers, event[1]["replicas"]["rows_per_second"], strict=True))
            seen.append((event[1]["time"], paces))

    client.subscribe_topic("dps", heard)
    pids = client.run(os.getpid)
    killed: list[float] = []

    def kill() -> None:
        until(lambda: seen and seen[-1][0] - seen[0][0] > 3, "three seconds of training")
        killed.append(time.time())
        os.kill(sorted(pids.items())[1][1], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    model = dps.MLPClassifier(
        (32,), max_iter=20, tol=None, early_stopping=False, batch_size=4096, random_state=0
    )
    model.fit(X, y)
    begun = seen[0][0]
    first, second = sorted(pids)
    figure, axes = plt.subplots(figsize=(8, 2.8))
    begins: dict[str, float] = {}
    for worker, name in ((first, "worker 1"), (second, "worker 2"), (None, "its successor")):
        points = [
            (at - begun, pace / 1000)
            for at, paces in seen
            for each, pace in paces.items()
            if (each == worker if worker else each not in pids)
        ]
        if points:
            times, paces = np.array(points).T
            gaps = np.flatnonzero(np.diff(times) > _GAP) + 1  # without rows, no line
            axes.plot(np.insert(times, gaps, np.nan), np.insert(paces, gaps, np.nan), label=name,
                      linestyle="--" if name == "worker 2" else "-")  # fmt: skip
            begins[name] = times[0]
    axes.margins(y=0.3)
    for at, height, said in (
        (killed[0] - begun, 0.92, "worker 2 is killed"),
        (begins["its successor"], 0.82, "its successor joins"),
    ):
        axes.axvline(at, color="#d62828", linestyle=":", linewidth=1)
        axes.annotate(said, (at, axes.get_ylim()[1] * height), xytext=(4, 0),
                      textcoords="offset points", color="#d62828")  # fmt: skip
    axes.set(xlabel="seconds", ylabel="1,000 rows a second", ylim=(0, None))
    axes.legend(loc="lower right", frameon=False)
    keep(figure, "recovery")


class Slow:
    """A linear model whose gradients take 2 ms, and 8 ms in the first replica that asks."""

    lock = threading.Lock()
    ranks: ClassVar[list[int]] = []

    def __init__(self, n_features: int, n_outputs: int) -> None:
        self.layout = {"coef": (n_features,)}

    def init(self, rng: np.random.Generator) -> Any:
        """Begin at zero."""
        return {"coef": 0.0}

    def raw(self, params: Any, batch: Any) -> Any:
        """Return the predictions."""
        return (batch.X @ params["coef"])[:, None]

    def loss_gradient(self, params: Any, batch: Any, out: Any) -> float:
        """Sleep, and add the gradient."""
        here = threading.get_ident()
        with self.lock:
            if here not in self.ranks:
                self.ranks.append(here)
            slow = self.ranks[0] == here
        time.sleep(0.008 if slow else 0.002)
        away = batch.X @ params["coef"] - batch.y
        out["coef"] += away @ batch.X
        return float(away @ away / 2)


def losses(client: None) -> None:
    """Training loss by seconds, of modes with four replicas, one of them four times as slow."""
    random = np.random.default_rng(0)
    X = random.normal(size=(25_600, 20))
    y = X @ random.normal(size=20) + 0.1 * random.normal(size=len(X))
    figure, axes = plt.subplots(figsize=(8, 3.2))
    modes = {
        "sync": dps.Sync(), "sync, backups=1": dps.Sync(backups=1), "async": dps.Async(),
        "allreduce, period=16": dps.AllReduce(period=16),
    }  # fmt: skip
    for name, mode in modes.items():
        Slow.ranks.clear()
        model = dps.ModelRegressor(
            Slow, mode=mode, n_replicas=4, optimizer="sgd", learning_rate=0.01, max_iter=6,
            tol=None, batch_size=32 if name == "async" else 128, random_state=0,
        ).fit(X, y)  # fmt: skip
        seconds = np.cumsum([epoch["seconds"] for epoch in model.history_])
        axes.plot(seconds, [epoch["loss"] for epoch in model.history_], marker="o", label=name)
    axes.set(xlabel="seconds", ylabel="training loss", yscale="log")
    axes.legend(frameon=False)
    keep(figure, "losses")


def many_hosts(client: None) -> None:
    """Speed-ups of a thousand hosts, from the page's tables."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True)
    tables = re.findall(r"^\*\*(.+?)\*\*.*?\n\n((?:\|.*\n)+)", SCALING.read_text(), re.MULTILINE)
    colors: dict[str, str] = {}
    for axis, (name, table) in zip(axes, tables, strict=True):
        header, _, *rows = table.splitlines()
        counts = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) hosts", header)]
        axis.plot(counts, counts, color="0.8")
        for row in rows:
            way = row.split("|")[1].strip()
            ups = [float(up) for up in re.findall(r"\(([\d.e+]+)\)", row)]
            color = colors.setdefault(way, f"C{len(colors)}")
            axis.plot(counts[: len(ups)], ups, marker="o", label=way, color=color)
        axis.set(title=name, xlabel="hosts", xscale="log", yscale="log")
    axes[0].set(ylabel="times one host")
    handles, labels = axes[1].get_legend_handles_labels()
    axes[2].legend(handles, labels, frameon=False, loc="lower right", fontsize="small")
    keep(figure, "many_hosts")


def keep(figure: Any, name: str) -> None:
    """Write a figure, with nothing in it that differs from run to run but its curves."""
    figure.tight_layout()
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    print(HERE / f"{name}.svg")


FIGURES: dict[str, Callable[[Any], None]] = {
    "recovery": recovery, "losses": losses, "many_hosts": many_hosts,
}  # fmt: skip


def main() -> None:
    """Make the figures that are named, or all."""
    mpl.rcParams |= {"svg.hashsalt": "dps", "svg.fonttype": "none"}
    for name in sys.argv[1:] or FIGURES:
        if name != "recovery":
            FIGURES[name](None)
            continue
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            FIGURES[name](client)


if __name__ == "__main__":
    main()
