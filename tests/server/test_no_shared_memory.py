"""Without room for shared memory, streams serve, and the trainer reports it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dps
from dps.errors import WindowError

X = da.from_array(np.random.default_rng(0).normal(size=(400, 5)), chunks=(100, -1))
Y = (X[:, 0] > 0).astype(int)
WHY = "No space left on device"


@pytest.fixture
def full(client: Client) -> Iterator[Client]:
    """A client of workers whose /dev/shm is full."""

    def fill() -> None:
        import errno

        from dps.server.memory import files as memory

        def no_room(fd: int, nbytes: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        memory._before = memory._allocate
        memory._allocate = no_room

    def empty() -> None:
        from dps.server.memory import files as memory

        memory._allocate = memory._before

    client.run(fill)
    yield client
    client.run(empty)


def fit(client: Client, **options: Any) -> dps.LinearClassifier:
    given = {"optimizer": "sgd", "max_iter": 3, "tol": None, "n_replicas": 2, **options}
    return dps.LinearClassifier(client=client, **given).fit(X, Y)


def test_log_report_and_page_say_that_there_is_no_room(
    full: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dps"):
        model = fit(full)
    (record,) = caplog.records
    (shard,) = model.plan_.shards
    said = f"The shard on {shard.removeprefix('tcp://')} has no shared memory (["
    for words in (record.getMessage(), model.fit_report_.advice[0]):
        assert words.startswith(said)
        assert WHY in words
        assert "/dev/shm" in words
    assert WHY in str(model.fit_report_)
    started = [event for _, event in full.get_events("dps") if event["kind"] == "started"][-1]
    assert WHY in started["shards"][0]["unshared"]

    def advice(dask_scheduler: Any) -> list[str]:
        said: list[str] = dask_scheduler.plugins["dps-fits"].store.fits[-1].advice
        return said

    assert full.run_on_scheduler(advice)[0].startswith(said)


def test_who_insists_on_mapping_hears_why_it_cannot_be(full: Client) -> None:
    with pytest.raises(WindowError, match=f"no file of shared memory: .*{WHY}"):
        fit(full, mode=dps.Sync(access="mapped"))


def test_nothing_is_said_where_there_is_room(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dps"):
        model = fit(client)
    assert not caplog.records
    assert "shared memory" not in str(model.fit_report_)
