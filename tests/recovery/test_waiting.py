"""A wait for tasks lasts as long as these make progress, and no longer."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
import pytest
from conditions import until
from configure import configure
from distributed import Client, Event, LocalCluster, Status

import dps
from dps.errors import ClusterError

ROWS = 400
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = (X[:, 0] > 0).astype(int)

#: Seconds that no test reaches unless it hangs.
_LONG = 60.0


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of two workers that may be harmed."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=None, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def parts(seconds: float = 0.0, n: int = 4) -> tuple[Any, Any]:
    """Data in a few partitions, of which each takes a while to compute."""

    def half(values: Any) -> Any:
        time.sleep(seconds)
        return values

    late = dask.delayed(half, pure=False)
    slices = [slice(ROWS * k // n, ROWS * (k + 1) // n) for k in range(n)]
    return [late(X[at]) for at in slices], [dask.delayed(Y[at]) for at in slices]


def fit(client: Client, data: Any, timeout: float = 2.0) -> dps.LinearClassifier:
    configure(timeout=timeout)
    return dps.LinearClassifier(client=client, max_iter=2, tol=None).fit(*data)


@contextmanager
def others_compute(client: Client, workers: Any, seconds: float = 0.2) -> Iterator[list[int]]:
    """Another user's short tasks, one after another on each worker."""
    over, done = threading.Event(), [0]

    def compute() -> None:
        while not over.is_set():
            client.gather([
                client.submit(time.sleep, seconds, workers=[worker], pure=False)
                for worker in workers
            ])  # fmt: skip
            done[0] += 1

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        until(lambda: done[0], "the others are at work")
        yield done
    finally:
        over.set()
        thread.join()


def test_partitions_may_take_longer_than_the_timeout(client: Client) -> None:
    assert fit(client, parts(seconds=4.0, n=2), timeout=2.0).n_iter_ == 2


@pytest.mark.slow
def test_a_far_rank_may_take_longer_than_the_timeout_to_read_in_async(client: Client) -> None:
    """The answer to its last push is under way meanwhile."""
    configure(timeout=2.0, cache=None)
    model = dps.LinearClassifier(
        client=client, max_iter=1, tol=None, shuffle=False, batch_size=50,
        mode=dps.Async(access="stream"), optimizer="sgd",
    )  # fmt: skip
    model.fit(*parts(seconds=2.5))
    assert [record["rows"] for record in model.history_] == [ROWS]


@pytest.mark.slow
def test_a_fit_waits_for_its_turn_behind_others(client: Client) -> None:
    before = [
        client.submit(time.sleep, 0.5, workers=[worker], pure=False)
        for worker in client.nthreads()
        for _ in range(12)
    ]
    assert fit(client, parts(), timeout=3.0).n_iter_ == 2
    del before


@pytest.mark.slow
def test_a_fit_whose_threads_are_occupied_says_by_what(client: Client) -> None:
    until_then = Event("occupied", client=client)
    tasks = [
        client.submit(until_then.wait, key=f"the-users-task-{worker}-{n}", workers=[worker])
        for worker, threads in client.nthreads().items()
        for n in range(threads)
    ]
    try:
        with pytest.raises(ClusterError) as caught:
            fit(client, parts(), timeout=3.0)
    finally:
        until_then.set()
        client.gather(tasks)
    assert "all threads of a worker are at other tasks (the-users-task" in str(caught.value)
    assert caught.value.worker in client.nthreads()


@pytest.mark.slow
def test_a_paused_worker_ends_a_fit_while_others_compute(client: Client) -> None:
    paused, other = sorted(client.nthreads())

    def pause(dask_worker: Any) -> None:
        dask_worker.status = Status.paused

    client.run(pause, workers=[paused])
    with others_compute(client, [other]):
        with pytest.raises(ClusterError, match="has paused 1 of 2 workers") as caught:
            fit(client, parts())
        assert paused in str(caught.value)


def test_a_worker_that_has_nothing_to_do_may_leave_while_data_is_loaded(client: Client) -> None:
    (*_, idle) = sorted(client.nthreads())
    began = Event("dps-test-began", client=client)

    def slow(values: Any) -> Any:
        Event("dps-test-began").set()
        Event("dps-test-left").wait(timeout=_LONG)
        return values

    whole = [dask.delayed(slow)(X)], [dask.delayed(Y)]
    models: list[Any] = []
    thread = threading.Thread(target=lambda: models.append(fit(client, whole, timeout=_LONG)))
    thread.start()
    assert began.wait(timeout=_LONG)
    client.retire_workers([idle])
    until(lambda: idle not in client.nthreads(), "the worker has left")
    Event("dps-test-left", client=client).set()
    thread.join(_LONG)
    (model,) = models
    assert model.n_iter_ == 2
    assert idle not in model.plan_.workers


@pytest.mark.slow
@pytest.mark.parametrize("when", ["asked", "loaded", "inspected"])
def test_a_worker_that_freezes_is_left_out_while_others_compute(client: Client, when: str) -> None:
    frozen, other = sorted(client.nthreads())
    pids = client.run(os.getpid)
    began = Event("dps-test-began", client=client)

    def slow(values: Any) -> Any:
        if not Event("dps-test-began").is_set():
            Event("dps-test-began").set()
            time.sleep(_LONG)
        return values

    late, at = dask.delayed(slow), slice(0, ROWS // 2)
    first = late(X[at]) if when == "loaded" else dask.delayed(X[at])
    data: Any = ([first, dask.delayed(X[at])], [dask.delayed(Y[at]), dask.delayed(Y[at])])
    if when == "inspected":
        fit(client, parts(), timeout=_LONG)  # workers are asked for their version once
        workers = [frozen, other]
        data = tuple(
            [client.compute(part, workers=[w]) for part, w in zip(given, workers, strict=True)]
            for given in data
        )
        client.gather([*data[0], *data[1]])
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(fit(client, data))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    if when != "loaded":
        os.kill(pids[frozen], signal.SIGSTOP)
    try:
        with others_compute(client, [other]):
            thread.start()
            if when == "loaded":
                assert began.wait(timeout=_LONG)
                os.kill(pids[frozen], signal.SIGSTOP)
            thread.join(_LONG)
            assert not thread.is_alive()
    finally:
        os.kill(pids[frozen], signal.SIGCONT)
    (end,) = ended
    if isinstance(end, BaseException):
        raise end
    assert end.plan_.workers == [other]
    assert [record["rows"] for record in end.history_] == [ROWS] * 2
    assert [frozen in loss.what for loss in end.fit_report_.losses] == [True] * (when != "asked")
