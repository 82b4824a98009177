"""Fits whose workers are killed: seconds until they train again, and what that does to the model.

    python tests/benchmarks/recovery.py [--repeat K] [--rows N] [--quick]

First a fit of many short epochs on three worker processes. One is killed in the middle. Printed are
the seconds from the SIGKILL until the client, which asks four times a second, knows that an epoch
has closed again. The client has the rows, and sends those of the dead worker again. Then the test
log loss of the flights of flights.py at defaults, undisturbed and with three kills in a fit.
Medians.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Any

import numpy as np
from distributed import Client
from sklearn.metrics import log_loss

from dps import LinearClassifier
from flights import DATA, read_flights, split
from measure import bars, cluster, options, table

WORKERS = 3


class Told(logging.Handler):
    """When the client heard of epochs, and of losses.

    Attributes
    ----------
    epochs, losses : list of float
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.epochs: list[float] = []
        self.losses: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take note."""
        said = record.getMessage()
        if said.startswith("epoch "):
            self.epochs.append(time.monotonic())
        elif "begun again" in said:
            self.losses.append(time.monotonic())


class Killer(threading.Thread):
    """Kills a worker of a fit after given numbers of further epochs.

    Parameters
    ----------
    client : Client
    told : Told
    after : list of int
        The numbers of epochs.
    shard : bool
        Whether it is the one that holds the first shard.
    """

    def __init__(self, client: Client, told: Told, after: list[int], shard: bool) -> None:
        super().__init__(daemon=True)
        self._client, self._told, self._after, self._shard = client, told, after, shard
        self.kills: list[float] = []
        self.over = threading.Event()  # the fit has ended

    def run(self) -> None:
        """Kill, and wait for the news of it."""
        for number, epochs in enumerate(self._after):
            while len(self._told.epochs) < epochs:
                if self.over.wait(0.001):
                    return
            holders = self._client.run(_holds_a_shard)
            chosen = [worker for worker, holds in sorted(holders.items()) if holds == self._shard]
            pid = self._client.run(os.getpid, workers=chosen[:1])[chosen[0]]
            self.kills.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)
            while len(self._told.losses) <= number:
                if self.over.wait(0.001):
                    return
            self._client.wait_for_workers(WORKERS)


def _holds_a_shard(dask_worker: Any) -> bool:
    return any("dps-shard" in str(key) for key in dask_worker.state.actors)


def disturbed(
    client: Client, told: Told, model: Any, data: tuple[Any, Any], after: list[int], shard: bool
) -> tuple[Any, list[float]]:
    """A fitted model, and the seconds that each kill took."""
    told.epochs, told.losses = [], []
    killer = Killer(client, told, after, shard)
    killer.start()
    model.fit(*data)
    killer.over.set()
    killer.join()
    client.wait_for_workers(WORKERS)
    seconds = [
        min(epoch for epoch in told.epochs if epoch > loss) - kill
        for kill, loss in zip(killer.kills, told.losses, strict=False)
    ]
    return model, seconds


def main() -> None:
    chosen = options(__doc__, repeat=7, rows=3_000_000)
    told, log = Told(), logging.getLogger("dps")
    log.addHandler(told)
    log.setLevel(logging.INFO)
    log.propagate = False
    rng = np.random.default_rng(0)
    n = 30_000
    X = rng.normal(size=(n, 20))
    y = (X @ rng.normal(size=20) + rng.logistic(size=n) > 0).astype(int)
    ways: dict[str, dict[str, Any]] = {
        "sync": {"max_iter": 300},
        "allreduce": {"mode": "allreduce", "max_iter": 300},
        "async": {"mode": "async", "max_iter": 3000},
    }
    found: dict[tuple[str, str], list[float]] = {}
    # Else Dask gives a worker up that is killed as often as here.
    with cluster(WORKERS, {"distributed.deploy.lost-worker-timeout": "1h"}) as client:
        for _ in range(1 if chosen.quick else chosen.repeat):
            for name, way in ways.items():
                for victim in ("a replica", "the shard's process"):
                    model = LinearClassifier(
                        optimizer="sgd", tol=None, random_state=0, client=client,
                        batch_size=1000, n_replicas=WORKERS, **way,
                    )  # fmt: skip
                    shard = victim != "a replica"
                    _, seconds = disturbed(client, told, model, (X, y), [20], shard)
                    found.setdefault((name, victim), []).extend(seconds)
        table(
            ("killed", "mode", "median", "worst"),
            [
                (victim, name, f"{np.median(s):.2f} s", f"{max(s):.2f} s")
                for (name, victim), s in found.items()
            ],
        )
        for victim in ("a replica", "the shard's process"):
            every = [s for (_, which), some in found.items() if which == victim for s in some]
            bars(
                (f"{victim} killed: seconds to the next epoch, median", np.median(every), "<=", 1),
                (f"{victim} killed: worst", max(every), "<=", 3),
            )
        if not DATA.exists():
            print("the flights are not here, left out\n")
            return
        rows = 20_000 if chosen.quick else chosen.rows
        X_train, y_train, X_test, y_test = split(*read_flights(rows))

        def loss(model: Any) -> float:
            return float(log_loss(y_test, model.predict_proba(X_test)))

        def flights(kills: list[int]) -> float:
            model = LinearClassifier(random_state=0, client=client, n_replicas=WORKERS)
            model, _ = disturbed(client, told, model, (X_train, y_train), kills, shard=False)
            return loss(model)

        whole, apart = flights([]), flights([2] if chosen.quick else [4, 9, 14])
        table(("flights", "test log loss"), [("undisturbed", f"{whole:.6f}"),
                                            ("with kills", f"{apart:.6f}")])  # fmt: skip
        bars(("flights: difference of the test log loss", abs(whole - apart), "<=", 1e-4))


if __name__ == "__main__":
    main()
