"""Promise 1 and 6 of the design: no hang, a stated error, and nothing left behind.

Real processes really die here. The tests share a cluster of two workers nevertheless: each
waits until nothing is left on it and, where it killed a worker, until Dask has put another
in its place. One worker's end is that of fits in every mode at once: each has its own error.
A scheduler that dies takes a cluster of its own, and so do the fits whose memory is measured,
which run beside the other tests.
"""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
import scipy.sparse
from cases import slow
from conditions import until
from configure import configure
from distributed import Client, LocalCluster, Status, get_worker
from endless import EndlessFit, end_all, fits_end_when_told
from groups import MODES
from local import local_client
from raising import Holding, Raising, Speechless, TwoArguments

import dps
from dps.cluster.dask.tasks import join_pieces
from dps.errors import (
    ClusterError,
    NonFiniteError,
    ReplicaError,
)
from dps.losses import LogLoss
from dps.monitor.dashboard import show_fits
from dps.optimizers import Schedule
from dps.server.memory.files import folder
from dps.training.job import new_fit_id
from dps.training.run import launch

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def slow_loss(later: float = 0.1) -> LogLoss:
    """A loss that takes its time; made in a function, so that it is pickled by value.

    Later, when an epoch has been closed, it may take more.
    """
    calls = [0]

    @dataclass(frozen=True)
    class Slow(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            calls[0] += 1
            time.sleep(0.1 if calls[0] <= 12 else later)
            return LogLoss.evaluate(self, y, raw, weight, out)

    return Slow()


def options_of(way: Any) -> dict[str, Any]:
    """A mode, or L-BFGS, which may not be done before the last of many fits has begun."""
    return {"optimizer": "lbfgs", "loss": slow_loss(3.0)} if way == "lbfgs" else {"mode": way}


EVERY_MODE = [
    *MODES,
    dps.AllReduce(algorithm="ring"),
    dps.AllReduce(period=4),
    dps.Sync(access="stream"),
    dps.Async(access="stream"),
    dps.Async(max_delay=2),
    dps.Async(max_delay=0, access="stream"),
    dps.Async(aggregate=2),
]


@contextmanager
def two_workers(started_by: str = "forkserver") -> Iterator[Client]:
    """A cluster of two workers, and another for each that dies.

    Dask looks only once, after "lost-worker-timeout", whether a lost worker is back, and gives it
    up if it is away at that moment, as it may be where workers are killed one after the other.

    What Dask remembers of the past is bounded: its logs grow up to thousands of lines, and
    work stealing keeps each worker that it has lost.
    """
    settings = {
        "distributed.scheduler.work-stealing": False,
        "distributed.admin.log-length": 10,
        "distributed.admin.low-level-log-length": 10,
        "distributed.deploy.lost-worker-timeout": "1h",
        "distributed.worker.multiprocessing-method": started_by,
    }
    with (
        dask.config.set(settings),
        local_client(2) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def shared() -> Iterator[Client]:
    with two_workers() as client:
        yield client


@pytest.fixture
def client(shared: Client) -> Client:
    """A client of two workers that are well."""
    shared.wait_for_workers(2, timeout=30)
    return shared


def classification(rows: int = 8000) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 10))
    y = (X @ rng.normal(size=10) + rng.logistic(size=rows) > 0).astype(int)
    return da.from_array(X, chunks=(rows // 8, 10)), da.from_array(y, chunks=rows // 8)


def wide(rows: int = 400) -> tuple[Any, Any]:
    """Sparse rows that touch so few of the columns that their steps go by keys."""
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((rows, 4000), density=0.002, format="csr", random_state=rng)
    y = (X @ rng.normal(size=4000) > 0).astype(int)
    halves = [slice(0, rows // 2), slice(rows // 2, rows)]
    return (
        da.concatenate([da.from_array(X[half], chunks=(-1, -1)) for half in halves]),
        da.concatenate([da.from_array(y[half]) for half in halves]),
    )


@pytest.fixture(autouse=True)
def _fits_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    note_fits(monkeypatch)


@pytest.fixture
def _fits_tell(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A :class:`Fit` knows whether its steps go by keys, and when an epoch is closed."""
    decide = launch.rates_of

    def decided(*args: Any) -> Any:
        rates = decide(*args)
        threading.current_thread().keyed = rates is not None  # type: ignore[attr-defined]
        return rates

    def closed(records: Any) -> None:
        threading.current_thread().epochs.set()  # type: ignore[attr-defined]

    monkeypatch.setattr(launch, "rates_of", decided)
    monkeypatch.setattr("dps.estimators.fit.callbacks.showing", lambda *_: nullcontext(closed))
    fits_end_when_told(monkeypatch)
    yield
    end_all()


_fits: list[str] = []


def note_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember the ids of fits: another process on this machine may have some too."""

    def noted() -> str:
        _fits.append(new_fit_id())
        return _fits[-1]

    monkeypatch.setattr("dps.training.job.new_fit_id", noted)


def files() -> list[Path]:
    """Files of shared memory that this process's fits have left."""
    return [path for fit in _fits for path in folder().glob(f"dps-{fit}-*")]


class Fit(EndlessFit):
    """An endless fit in a thread, which says when epochs are being closed."""

    def __init__(
        self,
        client: Client,
        data: Callable[[], tuple[Any, Any]] = classification,
        **parameters: Any,
    ) -> None:
        made = dps.LinearClassifier(client=client, verbose=1, random_state=0, **parameters)
        super().__init__(made, *data())
        self.keyed = False
        self.epochs = threading.Event()
        self.start()

    def begin(self) -> None:
        until(lambda: self.epochs.is_set() or self.error, "an epoch is closed")
        if self.error is not None:
            raise self.error

    def fails(self, seconds: float) -> BaseException:
        self.join(seconds)
        assert not self.is_alive(), f"the fit hangs for {seconds:g} s"
        assert self.error is not None
        return self.error


def assert_nothing_left(client: Client) -> None:
    """No task, Actor, connection, thread or file of dps, once the cluster has settled."""

    def tasks(dask_scheduler: Any) -> list[str]:
        return [str(key) for key in dask_scheduler.tasks if "dps-" in str(key)]

    def holdings(dask_worker: Any) -> list[str]:
        import threading

        names = [thread.name for thread in threading.enumerate()]
        names += [*dask_worker.handlers, *map(str, dask_worker._comms.values())]
        return [*map(str, dask_worker.state.actors), *(n for n in names if n.startswith("dps-"))]

    def found() -> list[Any]:
        return [
            *client.run_on_scheduler(tasks),
            *(item for items in client.run(holdings).values() for item in items),
            *(thread.name for thread in threading.enumerate() if thread.name.startswith("dps-")),
            *files(),
        ]

    until(lambda: not found(), "everything is given back")


def fits_in_every_way(
    client: Client, modes: Sequence[Any] = EVERY_MODE, **options: Any
) -> list[Fit]:
    """Fits side by side: in each mode, near and far, by L-BFGS, streamed, and in steps by keys."""
    by_keys: dict[str, Any] = {"data": wide, "optimizer": "momentum", "batch_size": 8}
    ways = [*modes, "lbfgs"]
    fits = [Fit(client, **options_of(way), **options) for way in ways]
    for cache in ("disk", None, "auto"):
        configure(cache=cache)
        if cache != "auto":
            fits.append(Fit(client, optimizer="adagrad", **options))
            fits[-1].begin()  # and so has looked at what is configured
    fits += [Fit(client, mode=mode, **by_keys, **options) for mode in ("sync", "async")]
    for fit in fits:
        fit.begin()
    assert [fit.keyed for fit in fits] == [False] * (len(fits) - 2) + [True] * 2
    return fits


def test_messages_that_do_not_reach_the_scheduler_are_told_apart(client: Client) -> None:
    configure(timeout=1.0)
    with Client(client.scheduler.address, set_as_default=False) as mute:
        mute._send_to_scheduler = lambda message: None
        with pytest.raises(ClusterError, match=r"the scheduler does not know \d+ of them"):
            dps.LinearClassifier(client=mute).fit(
                da.ones((100, 2), chunks=(50, 2)), da.arange(100, chunks=50) % 2
            )
        del mute._send_to_scheduler


# The worker of rank 0 holds the shards too.
@pytest.mark.usefixtures("_fits_tell")
@pytest.mark.parametrize(
    ("which", "modes"),
    [(1, ["sync", "async", dps.Sync(access="stream")]), *slow((0, EVERY_MODE), (1, EVERY_MODE))],
)
def test_every_fit_goes_on_when_a_worker_is_killed(
    which: int, modes: list[Any], client: Client
) -> None:
    pids = client.run(os.getpid)
    address = sorted(pids)[which]
    fits = fits_in_every_way(client, modes)
    os.kill(pids[address], signal.SIGKILL)
    for fit in fits:
        until(lambda fit=fit: fit.recoveries or fit.error, "it is begun again")  # type: ignore[misc]
        fit.epochs.clear()
        fit.begin()
        fit.stopping.set()
    for fit in fits:
        fit.end(losses=1)
        assert address in fit.recoveries[0].what
    client.wait_for_workers(2, timeout=30)
    assert_nothing_left(client)


@pytest.mark.slow
@pytest.mark.usefixtures("_fits_tell")
@pytest.mark.parametrize("which", [0, 1])
def test_every_fit_goes_on_without_a_worker_that_is_frozen(which: int, client: Client) -> None:
    pids = client.run(os.getpid)
    address = sorted(pids)[which]
    # They are all in one process then: the event loop of more of them would be too slow to answer.
    modes = ["sync", "async", dps.AllReduce(algorithm="ring"), dps.Sync(access="stream")]
    configure(timeout=5.0)
    fits = fits_in_every_way(client, modes)
    os.kill(pids[address], signal.SIGSTOP)
    try:
        for fit in fits:
            until(lambda fit=fit: fit.recoveries or fit.error, "it is begun again")  # type: ignore[misc]
            fit.epochs.clear()
            fit.begin()
            fit.stopping.set()
        for fit in fits:
            fit.end(losses=1)
            assert address in fit.recoveries[0].what
    finally:
        os.kill(pids[address], signal.SIGCONT)
    assert_nothing_left(client)


@pytest.mark.slow
@pytest.mark.usefixtures("_fits_tell")
def test_a_worker_that_is_frozen_for_a_while_disturbs_no_fit(client: Client) -> None:
    pids = client.run(os.getpid)
    fits = fits_in_every_way(client)
    for address in sorted(pids):
        os.kill(pids[address], signal.SIGSTOP)
        try:
            threading.Event().wait(2.0)  # others wait, and look around, twice
        finally:
            os.kill(pids[address], signal.SIGCONT)
    for fit in fits:
        fit.epochs.clear()
        fit.begin()
        fit.stopping.set()
    for fit in fits:
        fit.end(losses=0)
    assert_nothing_left(client)


def test_a_pass_over_the_data_may_take_longer_than_the_timeout(client: Client) -> None:
    X, y = classification()
    X, y = X.rechunk((500, 10)), y.rechunk(500)  # 8 calls of the loss a rank take 0.8 seconds
    configure(timeout=0.6)
    model = dps.LinearClassifier(
        optimizer="lbfgs", loss=slow_loss(), max_iter=1, tol=None,
        mode=dps.Sync(access="stream"), client=client,
    )  # fmt: skip
    assert model.fit(X, y).n_iter_ == 1


def test_rows_are_exchanged_anew_where_a_worker_dies_meanwhile(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = min(client.nthreads())

    def dies(pieces: Any) -> Any:
        if get_worker().address == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return join_pieces(pieces)

    X, y = classification()
    options = {"mode": "async", "shuffle": "global", "max_iter": 2, "tol": None}
    model = dps.LinearClassifier(**options, client=client)
    with monkeypatch.context() as context:
        context.setattr("dps.cluster.dask.exchange.join_pieces", dies)
        model.fit(X, y)
    assert [record["rows"] for record in model.history_] == [len(y)] * 2
    (loss,) = model.fit_report_.losses
    assert loss.loading
    assert victim in loss.what
    client.wait_for_workers(2, timeout=30)


@contextmanager
def scheduler_apart(tmp_path: Path) -> Iterator[tuple[Client, list[subprocess.Popen[Any]]]]:
    """A client of two workers, and the processes: the scheduler's, then theirs."""
    file = str(tmp_path / "scheduler.json")
    command = [sys.executable, "-m", "distributed.cli.dask_"]
    options = ["--scheduler-file", file, "--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [
        subprocess.Popen([*command[:2], command[2] + "scheduler", "--port", "0", *options], **quiet)
    ]
    try:
        for _ in range(2):
            worker = [*command[:2], command[2] + "worker", "--nthreads", "1", *options]
            started.append(subprocess.Popen([*worker, "--no-nanny"], **quiet))
        with Client(scheduler_file=file, set_as_default=False, timeout=30) as client:
            client.wait_for_workers(2, timeout=30)
            show_fits(client, timeout=60)  # a new process takes a while to import what it needs
            yield client, started
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("_fits_tell")
def test_a_killed_scheduler_ends_the_fit(tmp_path: Path) -> None:
    with scheduler_apart(tmp_path) as (client, processes):
        configure(timeout=2.0)
        fit = Fit(client)
        fit.begin()
        processes[0].kill()
        error = fit.fails(30)
        assert isinstance(error, ClusterError)
        assert "scheduler" in str(error) or "client" in str(error)
        client.close()
        for process in processes[1:]:
            process.wait(60)
        assert not files()


@pytest.mark.slow
def test_a_server_whose_scheduler_has_been_killed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dps.parameter_server.client.dask._ASK_SECONDS", 2.0)
    with scheduler_apart(tmp_path) as (client, processes):
        own = {"client": client, "timeout": 5.0}
        server = dps.ParameterServer({"w": np.zeros(4)}, name="s", n_shards=2, **own)
        server.push("w", np.ones(4))
        other = dps.ParameterServer.connect("s", client=client)
        processes[0].kill()
        processes[0].wait()
        until(lambda: client.status != "running", "the client has heard of it")
        try:
            other.push("w", np.ones(4))  # by a way that there is
            np.testing.assert_allclose(server.pull("w"), -0.2)
            assert server.versions == {"w": 2}
        except ClusterError:  # workers end without a scheduler, now or soon
            ended = lambda: any(process.poll() is not None for process in processes[1:])  # noqa: E731
            until(ended, "a worker has ended")
        asked: dict[str, Callable[[], Any]] = {
            "connect": lambda: dps.ParameterServer.connect("s", client=client),
            "list": lambda: dps.ParameterServer.list(client=client),
            "make": lambda: dps.ParameterServer({"w": np.zeros(4)}, **own),
            "close": server.close,
        }
        for name, ask in asked.items():
            with pytest.raises(ClusterError, match=r"scheduler|client is"):
                pytest.fail(f"{name} has returned {ask()!r}")
        client.close()


def rests(processes: Sequence[subprocess.Popen[Any]]) -> bool:
    """True if processes are almost idle over a while."""
    watched = [psutil.Process(process.pid) for process in processes]

    def worked() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in watched)

    before = worked()
    threading.Event().wait(0.5)
    return worked() - before < 0.1


@pytest.mark.slow
def test_an_error_while_the_scheduler_is_busy_stops_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(records: Any) -> None:
        os.kill(processes[0].pid, signal.SIGSTOP)
        raise ZeroDivisionError("the callback broke")

    monkeypatch.setattr("dps.estimators.fit.callbacks.showing", lambda *_: nullcontext(broken))
    with scheduler_apart(tmp_path) as (client, processes):
        fit = Fit(client)
        assert isinstance(fit.fails(60), ZeroDivisionError)
        until(lambda: rests(processes[1:]), "replicas have stopped")
        assert not files()
        os.kill(processes[0].pid, signal.SIGCONT)
        assert_nothing_left(client)


@pytest.mark.parametrize("distributed", [True, False], ids=["cluster", "threads"])
@pytest.mark.parametrize("mode", list(MODES))
def test_ctrl_c_keeps_the_last_closed_epoch_and_goes_on(
    mode: str, distributed: bool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    interrupted = threading.Event()

    def interrupt(records: Any) -> None:
        if records[-1].epoch >= 3 and not interrupted.is_set():
            interrupted.set()
            signal.pthread_kill(main, signal.SIGINT)

    monkeypatch.setattr("dps.estimators.fit.callbacks.showing", lambda *_: nullcontext(interrupt))
    X, y = classification()
    estimator = dps.LinearClassifier(
        mode=mode, max_iter=10**6, tol=None, verbose=1, random_state=0, n_replicas=2
    )
    if not distributed:
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(X.compute(), y.compute())
    else:
        estimator.client = client
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(X, y)
        assert_nothing_left(client)
        ends = [event for _, event in client.get_events("dps") if event["kind"] == "stopped"]
        assert (ends[-1]["reason"], ends[-1]["epochs"]) == ("interrupted", estimator.n_iter_)
    assert estimator.n_iter_ >= 3
    assert len(estimator.history_) == estimator.n_iter_
    assert estimator.score(X.compute(), y.compute()) > 0.8
    assert not [t.name for t in threading.enumerate() if t.name.startswith("dps-")]


def failing_loss(after: int) -> LogLoss:
    """A loss that breaks; made in a function, so that it is pickled by value."""

    @dataclass(frozen=True)
    class Failing(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            calls.append(1)
            if len(calls) > after:
                raise ZeroDivisionError("the loss broke")
            return LogLoss.evaluate(self, y, raw, weight, out)

    calls: list[int] = []
    return Failing()


@pytest.mark.parametrize("way", [*EVERY_MODE, "lbfgs"], ids=str)
def test_an_exception_in_a_replica_is_raised_with_its_place(way: Any, client: Client) -> None:
    X, y = classification()
    how = {"optimizer": "lbfgs"} if way == "lbfgs" else {"optimizer": "adagrad", "mode": way}
    estimator = dps.LinearClassifier(
        loss=failing_loss(after=5), client=client, shuffle=False, **how
    )
    with pytest.raises(ZeroDivisionError, match="the loss broke") as caught:
        estimator.fit(X, y)
    (note,) = caught.value.__notes__
    found = re.fullmatch(r"raised in replica [01] at step (\d) \(worker (tcp://.*)\)", note)
    assert found is not None
    assert found[2] in client.nthreads()
    # Under L-BFGS, steps are what has been exchanged: five times for 55 products of the features,
    # and twice in the first pass. A rank's four partitions make four calls.
    assert int(found[1]) == (8 if way == "lbfgs" else 6)
    assert caught.traceback[-1].name == "evaluate"
    assert_nothing_left(client)


def test_causes_and_notes_of_an_exception_arrive_too(client: Client) -> None:
    def make() -> Exception:
        error = LookupError("it broke")
        error.add_note("at noon")
        error.__cause__ = KeyError("typo")
        return error

    X, y = classification()
    with pytest.raises(LookupError, match="it broke\nat noon\nraised in replica") as caught:
        dps.LinearClassifier(loss=raising(make), optimizer="sgd", client=client).fit(X, y)
    assert repr(caught.value.__cause__) == "KeyError('typo')"


class Typo:
    """A model with a mistake in it."""

    layout: ClassVar[Any] = {"w": (4,)}
    wrong: ClassVar[Callable[[Any], Any]]

    def init(self, rng: Any) -> Any:
        return {"w": np.zeros(4)}

    def raw(self, params: Any, batch: Any) -> Any:
        return batch.X @ params["w"]

    def loss_gradient(self, params: Any, batch: Any, out: Any) -> Any:
        return type(self).wrong(params)


class Misspelt(Typo):
    """A tensor that is not there."""

    wrong = staticmethod(lambda params: params["typo"])


class Exits(Typo):
    """It ends the process, it thinks."""

    wrong = staticmethod(lambda params: sys.exit(3))


@pytest.mark.parametrize("on_cluster", [True, False])
@pytest.mark.parametrize("kind", [dps.ModelClassifier, dps.ModelRegressor])
@pytest.mark.parametrize("optimizer", ["auto", "lbfgs", "sgd", "adam"])
def test_the_first_typo_in_a_model_is_a_key_error(
    optimizer: str, kind: Any, on_cluster: bool, client: Client
) -> None:
    X = np.random.default_rng(0).normal(size=(500, 4))
    model = kind(Misspelt(), optimizer=optimizer, client=client if on_cluster else None)
    with pytest.raises(KeyError, match="typo") as caught:
        model.fit(X, (X[:, 0] > 0).astype(int))
    assert 'params["typo"]' in str(caught.traceback[-1].statement)
    assert any("raised in replica" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("on_cluster", [True, False])
@pytest.mark.parametrize("optimizer", ["lbfgs", "sgd"])
def test_a_model_that_calls_sys_exit_ends_the_fit_at_once(
    optimizer: str, on_cluster: bool, client: Client
) -> None:
    X = np.random.default_rng(0).normal(size=(500, 4))
    before = client.run(os.getpid)
    model = dps.ModelRegressor(
        Exits(), optimizer=optimizer, client=client if on_cluster else None, n_replicas=2
    )
    with pytest.raises(SystemExit) as caught:
        model.fit(X, X[:, 0])
    assert caught.value.code == 3
    assert client.run(os.getpid) == before


def raising(make: Callable[[], Exception]) -> LogLoss:
    """A loss that raises; made in a function, so that it is pickled by value."""

    @dataclass(frozen=True)
    class Here(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            raise make()

    return Here()


# cloudpickle sends code without its file's name, so only importable code has source lines.
@pytest.mark.parametrize(
    ("loss", "line"),
    [(Raising, "raise self.make()"), (raising, "")],
    ids=["in a module", "made on the spot"],
)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TwoArguments("it broke", "noon"), "TwoArguments: it broke at noon"),
        (lambda: Holding("a lock"), "Holding: a lock"),
        (lambda: Speechless(), "Speechless: its message raises RuntimeError"),
    ],
    ids=["two arguments", "holding a lock", "speechless"],
)
def test_an_exception_that_cannot_be_sent_arrives_in_words(
    make: Any, words: str, loss: Any, line: str, client: Client
) -> None:
    X, y = classification()
    with pytest.raises(Exception) as caught:
        dps.LinearClassifier(loss=loss(make), optimizer="sgd", client=client).fit(X, y)
    error = caught.value
    if isinstance(error, ReplicaError):
        assert f"a replica failed with {words}" in str(error)
        assert re.search(r'File ".+", line \d+, in evaluate', str(error))
        assert line in str(error)
    else:  # it can be sent after all, and only has no words
        assert type(error).__name__ == "Speechless"
    assert_nothing_left(client)


@pytest.mark.parametrize("mode", list(MODES))
def test_a_fit_that_overflows_ends_with_an_error(mode: str) -> None:
    X, y = classification()
    estimator = dps.LinearRegressor(
        mode=mode, optimizer="sgd", learning_rate=50.0, n_replicas=2, random_state=0
    )
    with pytest.raises(NonFiniteError, match="lower learning_rate") as caught:
        estimator.fit(X.compute(), y.compute())
    assert caught.value.rank in (0, 1)
    assert caught.value.step is not None


def test_an_overflow_after_some_epochs_keeps_the_last_of_them() -> None:
    X, y = classification(800)

    class Rising(Schedule):
        def __call__(self, epochs_done: float) -> float:
            return 0.1 if epochs_done < 3 else 1e3

    estimator = dps.LinearRegressor(
        optimizer="sgd", learning_rate=Rising(0.1), tol=None, random_state=0, batch_size=8
    )
    with pytest.raises(NonFiniteError):
        estimator.fit(X.compute(), y.compute())
    assert estimator.n_iter_ == 3
    assert np.isfinite(estimator.coef_).all()
    assert estimator.score(X.compute(), y.compute()) > 0.1


def test_a_partition_that_cannot_be_computed_raises_its_own_error(client: Client) -> None:
    def broken(block: Any) -> Any:
        raise FileNotFoundError("part.7.parquet")

    X, y = classification()
    with pytest.raises(FileNotFoundError, match=r"part\.7"):
        dps.LinearClassifier(client=client).fit(X.map_blocks(broken, meta=X._meta), y)
    assert_nothing_left(client)


def memory(client: Client) -> int:
    """Bytes that belong to the processes of a cluster alone.

    Not PSS: that changes with other processes that map the same libraries.
    Files of shared memory are looked for by themselves.
    """

    def collected() -> int:
        import gc
        import os

        import psutil

        gc.collect()
        return psutil.Process(os.getpid()).memory_full_info().uss

    gc.collect()
    return psutil.Process().memory_full_info().uss + sum(client.run(collected).values())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "what",
    [
        pytest.param("plain", marks=pytest.mark.beside("plain")),
        pytest.param("killed", marks=pytest.mark.beside("killed")),
    ],
)
def test_a_dozen_fits_leave_nothing_and_take_no_memory(what: str, beside: Any) -> None:
    assert beside.wait(280) == 0, beside.said.read_text()


@pytest.mark.slow
def test_workers_that_dask_has_paused_are_named() -> None:
    def pause(dask_worker: Any) -> None:
        dask_worker.status = Status.paused

    # Without a limit Dask does not look, and does not let the worker go on.
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, memory_limit=None, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        (address,) = client.run(pause)
        configure(timeout=3.0)
        with pytest.raises(ClusterError, match="has paused 1 of 1 workers, whose memory") as caught:
            dps.LinearClassifier(client=client).fit(*drawn_on_workers(8000))
        assert address in str(caught.value)


def drawn_on_workers(rows: int) -> tuple[Any, Any]:
    """Data that is made where it is used: Dask remembers what travels in a graph."""
    X = da.random.default_rng(0).normal(size=(rows, 10), chunks=(rows // 8, 10))
    return X, (X.sum(axis=1) > 0).astype(int)


def plain_fit(client: Client, number: int) -> None:
    dps.LinearClassifier(
        mode=list(MODES)[number % len(MODES)], client=client, max_iter=5, tol=None
    ).fit(*drawn_on_workers(20000))


def killed_fit(client: Client, number: int) -> None:
    """A worker is killed at a random moment, from the first check to the last step.

    If it dies before the fit has seen it, the fit is without it and has lost nothing.
    """
    rng = random.Random(number)
    pids = client.run(os.getpid)
    killed = rng.choice(sorted(pids))
    configure(timeout=20.0)
    made = dps.LinearClassifier(
        mode=list(MODES)[number % len(MODES)], client=client, random_state=0
    )
    fit = EndlessFit(made, *drawn_on_workers(8000))
    kill = threading.Timer(rng.random() * 0.7, os.kill, (pids[killed], signal.SIGKILL))
    kill.start()
    fit.start()
    kill.join()
    until(
        lambda: fit.recoveries or fit.error or (fit.workers and killed not in fit.workers),
        "the fit is without the worker",
    )
    fit.end()
    assert [killed in loss.what for loss in fit.recoveries] in ([True], [])
    until(lambda: killed not in client.nthreads(), "the worker is gone")
    client.wait_for_workers(2, timeout=30)
    plain_fit(client, number)


def a_dozen_fits(fit: Callable[[Client, int], None], started_by: str) -> None:
    note_fits(patch := pytest.MonkeyPatch())
    fits_end_when_told(patch)
    with two_workers(started_by) as client:
        sizes = []
        for number in range(12):
            fit(client, number)
            assert_nothing_left(client)
            sizes.append(memory(client))
        print(*sizes, file=sys.stderr)
        assert sizes[-1] <= 1.05 * sizes[2]


if __name__ == "__main__":  # in a process of its own: other tests' clusters would be measured too
    a_dozen_fits(
        *{"plain": (plain_fit, "spawn"), "killed": (killed_fit, "forkserver")}[sys.argv[1]]
    )
