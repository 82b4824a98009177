"""Fits in which something goes wrong at a random moment, and whether what is promised holds.

    PYTHONPATH=tests/harness python tests/chaos/faults.py [--faults N] [--seed S] [--neighbours]

Each case is drawn by its number: workers, mode, data, estimator, victim, fault and moment. It is
run on a cluster of real processes. A fit that can finish must, with each row counted once an
epoch; one that cannot must say so by an error of dps; none may hang, or leave anything behind.
With ``--neighbours`` other users are there too (`neighbours.py`), who must not be harmed, and
workers have ports from a range, so that they come back at addresses of dead ones; every fourth
cluster has 1 MB of shared memory. As root.
Prints each case that breaks a promise with its number, which runs it again, and a table.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
from configure import configure
from distributed import Client, LocalCluster
from neighbours import NEIGHBOURS, Neighbour, alone, little_shared_memory
from uneven import Slow

import dps
import dps.training.job as job_module
from dps.errors import ClusterError, DPSError, WorkerLostError

ROWS, EPOCHS = 2400, 5
HANG = 90.0  # seconds after which a case counts as one that hangs


def _rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 10))
    return X, (X @ rng.normal(size=10) + rng.logistic(size=ROWS) > 0).astype(int)


def _drawn(client: Client) -> tuple[Any, Any]:
    X = da.random.default_rng(0).normal(size=(ROWS, 10), chunks=(ROWS // 8, 10))
    return X, (X[:, :5].sum(axis=1) > 0).astype(int)


def _frame(client: Client) -> tuple[Any, Any]:
    X, y = _rows()
    frame = pd.DataFrame(X[:, :4], columns=list("abcd"))
    frame["kind"] = pd.Categorical(np.where(X[:, 4] > 0, "plus", "minus"))
    return dd.from_pandas(frame, npartitions=7), dd.from_pandas(pd.Series(y), npartitions=7)


def _scattered(client: Client) -> tuple[Any, Any]:
    X, y = _rows()
    parts = np.array_split(np.arange(ROWS), 8)
    pairs = [client.scatter([X[part], y[part]], hash=False) for part in parts]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


DATA: dict[str, Callable[[Client], tuple[Any, Any]]] = {
    "numpy": lambda client: _rows(),
    "drawn": _drawn,
    "persisted": lambda client: client.persist(_drawn(client)),
    "frame": _frame,
    "scattered": _scattered,
}
MODES: dict[str, Callable[[], Any]] = {
    "sync": lambda: "sync",
    "sync, stream": lambda: dps.Sync(access="stream"),
    "sync, snapshots": lambda: dps.Sync(snapshot_every=0),
    "async": lambda: "async",
    "async, bounded": lambda: dps.Async(max_delay=2),
    "async, stream": lambda: dps.Async(access="stream"),
    "allreduce": lambda: "allreduce",
    "allreduce, snapshots": lambda: dps.AllReduce(snapshot_every=0, access="stream"),
    "local steps": lambda: dps.AllReduce(period=4),
    "auto": lambda: "auto",
}
#: Models, and what they must have lost at least in the end.
MODELS: dict[str, Callable[..., Any]] = {
    "sgd": partial(dps.LinearClassifier, optimizer="momentum"),
    "adam": partial(dps.LinearClassifier, optimizer="adam"),
    "lbfgs": partial(dps.LinearClassifier, optimizer="lbfgs"),
    "network": partial(dps.MLPClassifier, (8,)),
    "machine": partial(dps.FMClassifier, 4),
}
#: What can be waited for in the process of a victim: a function that it calls, by name.
POINTS = {
    "load": "dps.training.replica.replica:cuts_of",
    "pull": "dps.training.replica.channel:Channel.pull",
    "an epoch's begin": "dps.training.replica.channel:Channel.begin_epoch",
    "an epoch's end": "dps.training.replica.channel:Channel.end_epoch",
    "snapshot": "dps.training.replica.channel:Channel._snapshot",
    "snapshot within an epoch": "dps.training.replica.channel:Channel.keep",
    "validation": "dps.training.replica.validation:HeldOutRows.at",
    "shard opens": "dps.server.shard:ParameterShard.open",
    "account": "dps.training.replica.channel:Channel.account",
}
FAULTS = ("kill", "kill", "kill", "freeze", "retire", "kill two")


def fail_at(dask_worker: Any, point: str, count: int) -> None:
    """Have a worker kill itself as it calls a function for the nth time, unless it is disarmed."""
    module, _, name = POINTS[point].partition(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original, calls = getattr(owner, last), [0]

    def called(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == count and dask_worker.dps_armed:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **options)

    setattr(owner, last, called)
    dask_worker.dps_armed = True


def disarm(dask_worker: Any) -> None:
    """Spare a worker that has called the function too few times to die."""
    dask_worker.dps_armed = False


@dataclass
class Case:
    """One fit and what happens to it, drawn by a number; with other workers for each 25 of them."""

    number: int
    neighbours: bool = False

    def __post_init__(self) -> None:
        chance = self.chance = random.Random(f"{self.number}, neighbours")
        self.neighbour = chance.choice(NEIGHBOURS) if self.neighbours else Neighbour
        draw = random.Random(self.number)
        self.mode = draw.choice(list(MODES))
        self.model = draw.choice(list(MODELS))
        if self.model == "lbfgs" and self.mode == "local steps":
            self.mode = "allreduce"
        self.data = draw.choice(list(DATA))
        self.drops = draw.random() < 0.5
        self.early = draw.random() < 0.3 and self.model != "lbfgs"
        self.cache = draw.choice(["auto", "disk", None])
        self.fault = draw.choice(FAULTS)
        self.point = draw.choice([None, *POINTS]) if self.fault == "kill" else None
        self.count = draw.choice([1, 2, 4])
        self.delay = 1.5 * draw.random() ** 2
        self.victims = [draw.random() for _ in range(2)]
        if self.fault == "freeze" and draw.random() < 0.5:
            self.fault = "freeze for good"

    def __str__(self) -> str:
        at = f"{self.delay:.2f} s" if self.point is None else f"{self.point} {self.count}"
        return (
            f"{self.number}: {self.fault} at {at}, {self.mode}, {self.model}, {self.data}"
            f"{', early stopping' * self.early}, cache={self.cache}, drops={self.drops}, "
            f"{self.neighbour.__name__}"
        )

    def estimator(self, client: Client, **more: Any) -> Any:
        """The estimator to fit."""
        more |= {} if self.model == "lbfgs" else {"batch_size": 100}
        if self.model in ("sgd", "adam", "lbfgs"):
            more["loss"] = Slow(seconds=0.01)
        if self.model == "machine" and self.data == "frame" and self.mode in ("sync", "async"):
            more["max_embeddings"] = 4096
        configure(
            cache=self.cache, timeout=4.0 if self.fault == "freeze for good" else 30.0,
            on_data_loss="drop" if self.drops else "error",
        )  # fmt: skip
        return MODELS[self.model](
            client=client, mode=MODES[self.mode](), max_iter=EPOCHS, tol=None, random_state=0,
            early_stopping=self.early, verbose=0, **more,
        )  # fmt: skip

    def strike(self, client: Client) -> None:
        """Harm the chosen workers."""
        workers = sorted(client.nthreads())
        chosen = [workers[int(at * len(workers))] for at in self.victims]
        if self.point is not None:
            client.run(fail_at, point=self.point, count=self.count, workers=chosen[:1])
            return
        time.sleep(self.delay)
        pids = client.run(os.getpid)
        if self.fault == "retire":
            client.retire_workers(chosen[:1])
            return
        for worker in dict.fromkeys(chosen[: 1 + (self.fault == "kill two")]):
            if worker not in pids:
                continue
            if self.fault.startswith("freeze"):
                os.kill(pids[worker], signal.SIGSTOP)
                self.ended.wait(1.0 if self.fault == "freeze" else HANG)
                os.kill(pids[worker], signal.SIGCONT)
            else:
                os.kill(pids[worker], signal.SIGKILL)

    def run(self, client: Client) -> list[str]:
        """Run it; the promises that were broken."""
        beside = self.neighbour(client, self.chance)
        beside.begin()
        try:
            broken, fits = self._run(client, beside)
            broken += [f"harmed: {each}" for each in beside.harm()]
        finally:
            beside.end()
        return [*broken, *left_behind(client, fits)]

    def _run(self, client: Client, beside: Neighbour) -> tuple[list[str], list[str]]:
        options = beside.options()
        if self.model == "machine" and "server" in options:
            options = {}  # a table cannot be published
        model, (X, y) = self.estimator(client, **options), DATA[self.data](client)
        self.ended = threading.Event()
        found: dict[str, Any] = {"fits": []}

        def fit() -> None:
            made = job_module.new_fit_id
            job_module.new_fit_id = lambda: found["fits"].append(made()) or found["fits"][-1]
            try:
                model.fit(X, y)
            except BaseException as error:
                found["error"] = error
            finally:
                job_module.new_fit_id = made

        fitting = threading.Thread(target=fit, daemon=True)
        striking = threading.Thread(target=self.strike, args=(client,), daemon=True)
        if self.point is None:
            striking.start()
        else:
            self.strike(client)
        fitting.start()
        fitting.join(HANG)
        self.ended.set()
        if fitting.is_alive():
            frame = sys._current_frames()[fitting.ident]  # type: ignore[index]
            return ["hangs: " + "".join(traceback.format_stack(frame)[-12:])], []
        if self.point is None:
            striking.join(HANG)
        client.run(disarm, on_error="ignore")
        error = found.get("error")
        if error is not None and not hasattr(model, "n_iter_") and beside.explains(error):
            self.outcome = "not hit"
            return [], found["fits"]
        return [*self._broken(model, error)], found["fits"]

    def _broken(self, model: Any, error: BaseException | None) -> Iterator[str]:
        self.outcome = "its rows are gone"
        if error is not None:
            lost = isinstance(error, WorkerLostError | ClusterError) and self.data == "scattered"
            if not isinstance(error, DPSError):
                yield "untyped: " + "".join(traceback.format_exception(error))
            elif not lost:
                yield "gave up: " + "".join(traceback.format_exception(error))
            return
        report, history = model.fit_report_, model.history_
        self.outcome = "goes on" if report.losses else "not hit"
        if self.model != "lbfgs" and len(history) != EPOCHS and not self.early:
            yield f"epochs: {len(history)}"
        if [record["epoch"] for record in history] != list(range(1, len(history) + 1)):
            yield "epochs out of order"
        counts = {record["rows"] for record in history}
        dropped = sum(loss.dropped for loss in report.losses)
        if len(counts) > 1 and not dropped:
            yield f"rows: {counts}"
        if not self.early and not {ROWS, ROWS - dropped} >= counts:
            yield f"rows: {counts}, and {dropped} are dropped"
        if self.fault == "freeze" and report.losses:
            yield f"false alarm: {report.losses}"
        if not history[-1]["loss"] < 0.69:
            yield f"loss: {history[-1]['loss']}"


def left_behind(client: Client, fits: list[str]) -> list[str]:
    """The remains of ended fits."""

    def tasks(dask_scheduler: Any) -> list[str]:
        return [str(key) for key in dask_scheduler.tasks if "dps-" in str(key)]

    def held(dask_worker: Any) -> list[str]:
        import threading

        names = [thread.name for thread in threading.enumerate()]
        names += map(str, dask_worker.state.actors)  # a neighbour may have some, too
        return [name for name in names if name.startswith("dps-")]

    deadline = time.monotonic() + 15
    while True:
        found = [
            *client.run_on_scheduler(tasks),
            *(item for items in client.run(held, on_error="ignore").values() for item in items),
            *(path.name for fit in fits for path in Path("/dev/shm").glob(f"dps-{fit}*")),
        ]
        if not found or time.monotonic() > deadline:
            return [f"left behind: {found}"] if found else []
        time.sleep(0.05)


@contextmanager
def cluster(n_workers: int, ports: str | None = None) -> Iterator[Client]:
    """Workers that come back as often as they die."""
    with (
        dask.config.set(
            {
                "distributed.deploy.lost-worker-timeout": "1h",
                "distributed.worker.multiprocessing-method": "forkserver",
            }
        ),
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address=":0",
            silence_logs=logging.CRITICAL, **({} if ports is None else {"worker_port": ports}),
        ) as made,
        Client(made, set_as_default=False) as client,
    ):  # fmt: skip
        yield client


def whole(client: Client, n_workers: int, retired: int) -> None:
    """See that as many workers as ever are there: one that has retired does not come back."""
    client.cluster.scale(n_workers + retired)
    client.wait_for_workers(n_workers, timeout=30)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first case")
    parser.add_argument("--neighbours", action="store_true", help="other users are there too")
    chosen = parser.parse_args()
    logging.getLogger("dps").setLevel(logging.CRITICAL)
    broken: Counter[str] = Counter()
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    if chosen.neighbours:
        alone()
    began, numbers = time.monotonic(), range(chosen.seed, chosen.seed + chosen.faults)
    for group, some in groupby(numbers, lambda number: number // 25):
        n_workers, retired = 2 + group % 5, 0
        first = 21_000 + group % 100 * 50
        little = chosen.neighbours and group % 4 == 3
        with (
            little_shared_memory() if little else nullcontext(),
            cluster(n_workers, f"{first}:{first + 49}" if chosen.neighbours else None) as client,
        ):
            for number in some:
                case = Case(number, chosen.neighbours)
                whole(client, n_workers, retired)
                retired += case.fault == "retire"
                was = time.monotonic()
                found = case.run(client)
                outcomes[case.fault]["broken" if found else case.outcome] += 1
                for what in found:
                    broken[what.partition(":")[0]] += 1
                    print(
                        f"{case}, {n_workers} workers, {time.monotonic() - was:.1f} s\n  {what}",
                        flush=True,
                    )
                if psutil.virtual_memory().percent > 95:
                    raise SystemExit("memory runs out")
    print(f"{chosen.faults} faults in {time.monotonic() - began:.0f} s: {dict(broken)}")
    kinds = ("goes on", "not hit", "its rows are gone", "broken")
    print("| | cases | " + " | ".join(kinds) + " |\n|---|" + "---|" * (1 + len(kinds)))
    for fault, counts in sorted(outcomes.items()):
        shown = " | ".join(str(counts[kind]) for kind in kinds)
        print(f"| {fault} | {counts.total()} | {shown} |")


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()
