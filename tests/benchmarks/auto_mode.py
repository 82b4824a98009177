"""mode="auto" beside each mode there is, in five scenarios: the loss after a fixed time, and why.

    python tests/benchmarks/auto_mode.py [--repeat K] [--only SCENARIO ...] [--quick]

Each fit is interrupted a fixed time after its call, and keeps the model of its last closed epoch.
The loss is the mean over all rows. Only `mode` differs. Modes take turns; medians.

even: four replicas in threads of this process; their gradients sleep for each row and compute
nothing. slow: the same, where the first replica sleeps four times as long. hosts: two network
namespaces with a worker each (`namespaces.py`, as root on Linux), and dense rows of many columns.
sparse: the rows of `wide.py`, by keys, on two workers of this machine. tiny: a very short fit.
"""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

import dps
from dps.models import Batch
from flights import on_cluster
from hosts import drawn, put
from measure import bars, cluster, options, table
from namespaces import cluster_of_hosts, why_not
from wide import text

SCENARIOS = ("even", "slow", "hosts", "sparse", "tiny")
REPLICAS, SLOWER = 4, 4
MODES: dict[str, Any] = {
    "sync": dps.Sync(),
    "backups=1": dps.Sync(backups=1),
    "backups=1, late_gradients='add'": dps.Sync(backups=1, late_gradients="add"),
    "async": dps.Async(),
    "max_delay=8": dps.Async(max_delay=8),
    "allreduce": dps.AllReduce(),
    "period=16": dps.AllReduce(period=16),
    "auto": "auto",
}

#: Makes the estimator of a mode; fitted, and scored, on these rows.
Scenario = tuple[Callable[[Any], Any], Any, Callable[[Any], float]]


class Sleeping:
    """A line, of whose gradients each row takes a while; the first replica may be slow."""

    seconds, slower = 0.0, 1

    def __init__(self, n_features: int, n_outputs: int) -> None:
        self.layout = {"slope": (n_features,)}

    def init(self, rng: np.random.Generator) -> Any:
        return {"slope": np.zeros(self.layout["slope"])}

    def raw(self, params: Any, batch: Batch) -> Any:
        return (batch.X @ params["slope"])[:, None]

    def loss_gradient(self, params: Any, batch: Batch, out: Any) -> float:
        slow = threading.current_thread().name == "dps-replica-0"
        time.sleep(batch.rows * self.seconds * (self.slower if slow else 1))
        away = batch.X @ params["slope"] - batch.y.ravel()
        out["slope"] += batch.X.T @ away
        return float((away**2).sum() / 2)


@contextmanager
def sleeping(slower: int, quick: bool) -> Iterator[Scenario]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1_600 if quick else 6_400, 20)) * np.geomspace(1.0, 0.03, 20)
    y = X @ rng.normal(size=20) + 0.1 * rng.normal(size=len(X))

    def made(mode: Any) -> Any:
        Sleeping.seconds, Sleeping.slower = 5e-5 if quick else 1e-4, slower
        return dps.ModelRegressor(
            Sleeping, mode=mode, n_replicas=REPLICAS, max_iter=10_000, tol=None, optimizer="sgd",
            batch_size=64, learning_rate=0.3, random_state=0,
        )  # fmt: skip

    yield made, (X, y), lambda model: float(((model.predict(X) - y) ** 2).mean() / 2)


def stochastic(mode: Any, **more: Any) -> Any:
    return dps.LinearClassifier(mode=mode, tol=None, random_state=0, **more)


def log_loss(X: Any, y: Any) -> Callable[[Any], float]:
    """The log loss over all rows, which lie in this process."""

    def loss(model: Any) -> float:
        chances = model.predict_proba(X)[np.arange(len(y)), y]
        return float(-np.log(np.maximum(chances, 1e-15)).mean())

    return loss


@contextmanager
def between_hosts(quick: bool) -> Iterator[Scenario]:
    rows, width = (64, 2_000) if quick else (2_048, 10_000)
    with cluster_of_hosts(2) as made:
        data = put(drawn, made.client, rows, width)
        X, y = made.client.gather(made.client.compute(data))

        def model(mode: Any) -> Any:
            return stochastic(
                mode, client=made.client, optimizer="sgd", learning_rate=10.0 / width,
                batch_size=16, max_iter=10_000, alpha=0.0,
            )  # fmt: skip

        yield model, data, log_loss(np.asarray(X), np.asarray(y))


@contextmanager
def wide_and_sparse(quick: bool) -> Iterator[Scenario]:
    X, y = text(*((2_048, 1 << 12) if quick else (65_536, 1 << 20)))
    with cluster() as client:

        def model(mode: Any) -> Any:
            return stochastic(
                mode, client=client, optimizer="adagrad", batch_size=256, max_iter=10_000,
                alpha=1 / len(y),
            )  # fmt: skip

        yield model, on_cluster(client, X, y), log_loss(X, y)


@contextmanager
def tiny(quick: bool) -> Iterator[Scenario]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 10))
    y = (X @ rng.normal(size=10) + rng.logistic(size=400) > 0).astype(int)

    def model(mode: Any) -> Any:
        return stochastic(mode, optimizer="adam", batch_size=64, max_iter=20, n_replicas=2)

    yield model, (X, y), log_loss(X, y)


def places(quick: bool) -> dict[str, Any]:
    return {
        "even": lambda: sleeping(1, quick),
        "slow": lambda: sleeping(SLOWER, quick),
        "hosts": lambda: between_hosts(quick),
        "sparse": lambda: wide_and_sparse(quick),
        "tiny": lambda: tiny(quick),
    }


def fit_for(seconds: float, model: Any, data: Any) -> Any:
    """Fit until it ends, or is interrupted."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with suppress(KeyboardInterrupt):
            model.fit(*data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return model


def compare(name: str, scenario: Scenario, modes: Any, seconds: float, repeat: int) -> float:
    """Print a scenario's table; the loss of auto, as a multiple of the best mode's."""
    made, data, loss = scenario
    losses: dict[str, list[float]] = defaultdict(list)
    last: dict[str, Any] = {}
    for _ in range(repeat):
        for mode, option in modes.items():
            last[mode] = fit_for(seconds, made(option), data)
            losses[mode].append(loss(last[mode]))
    medians: Mapping[str, float] = {mode: statistics.median(of) for mode, of in losses.items()}
    best = min(value for mode, value in medians.items() if mode != "auto")
    print(f"{name}: {seconds:g} s\n")
    table(
        ("mode", "loss", "times the best", "epochs"),
        (
            (mode, f"{value:.5g}", f"{value / best:.2f}", f"{len(last[mode].history_)}")
            for mode, value in medians.items()
        ),
    )
    print(f"{last['auto'].fit_report_.chosen}\n")
    return medians["auto"] / best


def main() -> None:
    chosen = options(__doc__, repeat=3, seconds=10, only=SCENARIOS)
    modes, seconds = MODES, float(chosen.seconds)
    if chosen.quick:
        modes, seconds = {mode: MODES[mode] for mode in ("sync", "auto")}, 2.2
    reached = []
    for name in chosen.only:
        if name == "hosts" and (reason := why_not()):
            print(f"hosts: left out, {reason}\n")
            continue
        with places(chosen.quick)[name]() as scenario:
            times = compare(name, scenario, modes, seconds, chosen.repeat)
        reached.append((f"{name}: loss of auto, times the best mode's", times, "<=", 1.1))
    bars(*reached)


if __name__ == "__main__":
    main()
