"""Writes that raise: nothing was done; or that is not known, and a retry is safe."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest
from conditions import until
from distributed import Client
from local import local_client

import dps
from dps.errors import ServerLostError, UnknownOutcomeError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def three() -> Iterator[Client]:
    """A client of three workers, of whom some freeze for a while."""
    with local_client(3) as client:
        yield client


@contextmanager
def frozen(client: Client, worker: str) -> Iterator[Callable[[], None]]:
    """A worker that stands still until the end, or until it is told to go on."""
    pid = client.run(os.getpid, workers=[worker])[worker]
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it stands still")
        yield lambda: os.kill(pid, signal.SIGCONT)
    finally:
        os.kill(pid, signal.SIGCONT)
        until(lambda: worker in client.run(int), "it answers again")


WRITES: dict[str, Callable[[dps.ParameterServer], Any]] = {
    "add": lambda server: server.add("w", 1.0),
    "by keys": lambda server: server.add("w", np.ones((6, 2)), [0, 1, 2, 3, 4, 5]),
    "push": lambda server: server.push("w", -np.ones((6, 2))),
    "push_pull": lambda server: server.push_pull("w", -np.ones((6, 2))),
}


@pytest.mark.parametrize(
    ("write", "n_shards", "mirror"),
    [("add", 1, False), ("push_pull", 1, True), ("by keys", 2, False), ("push", 2, True)],
)
def test_a_write_whose_end_is_not_known_says_so_and_is_repeated_once(
    write: str, n_shards: int, mirror: bool, three: Client
) -> None:
    """The shard freezes; or its mirror does, and the shard has the write."""
    workers = sorted(three.nthreads())
    given: dict[str, Any] = {"workers": workers[:2], "n_shards": n_shards, "mirror": mirror}
    with dps.ParameterServer(
        {"w": np.zeros((6, 2))}, learning_rate=1.0, timeout=1.0, client=three, **given
    ) as server:
        server.pull("w")
        shards = server.stats()["shards"]
        with frozen(three, shards[-1]["mirror" if mirror else "worker"]) as go_on:
            with pytest.raises(UnknownOutcomeError, match=r"w\[\d:6\] may have been") as caught:
                WRITES[write](server)
            go_on()
            found = caught.value.retry()
            caught.value.retry()  # nothing is left to do
            if write == "push_pull":
                assert found.tolist() == [[1.0, 1.0]] * 6
        assert server.pull("w").tolist() == [[1.0, 1.0]] * 6
        assert server.versions == {"w": 1}
        server.add("w", 1.0)
        assert server.pull("w").tolist() == [[2.0, 2.0]] * 6


def test_an_error_that_says_nothing_of_that_means_that_nothing_was_done(three: Client) -> None:
    worker = min(three.nthreads())
    with dps.ParameterServer(
        {"w": np.zeros(3)}, timeout=1.0, client=three, workers=[worker], mirror=False
    ) as server:
        # No connection has been made to it before.
        with frozen(three, worker), pytest.raises(ServerLostError) as caught:
            server.add("w", 1.0)
        assert not isinstance(caught.value, UnknownOutcomeError)
        assert server.pull("w").tolist() == [0, 0, 0]


def test_a_function_whose_end_is_not_known_is_not_repeated(three: Client) -> None:
    worker = min(three.nthreads())
    with dps.ParameterServer(
        {"w": np.zeros(3)}, timeout=1.0, client=three, workers=[worker], mirror=False
    ) as server:
        server.apply("w", len)
        unknown = pytest.raises(UnknownOutcomeError, match="whether the function was at work")
        with frozen(three, worker), unknown as caught:
            server.apply("w", len)
        with pytest.raises(RuntimeError, match="cannot be repeated from here"):
            caught.value.retry()
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, UnknownOutcomeError)


def test_a_write_is_not_repeated_when_shards_may_have_forgotten_it(three: Client) -> None:
    worker = min(three.nthreads())
    with dps.ParameterServer(
        {"w": np.zeros(3)}, timeout=1.0, client=three, workers=[worker], mirror=False
    ) as server:
        server.add("w", 0.0)
        with frozen(three, worker), pytest.raises(UnknownOutcomeError) as caught:
            server.add("w", 1.0)
        until(lambda: server.pull("w")[0] == 1.0, "it is done after all")

        def refused() -> bool:
            try:
                caught.value.retry()
            except UnknownOutcomeError as error:
                return "More than 1 s have passed" in str(error)
            return False

        until(refused, "it is too late")
        assert server.pull("w").tolist() == [1, 1, 1]
