"""Closed epochs survive what follows: a full disk, a loss, an error of any class."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
from conditions import until
from configure import configure
from distributed import Client
from distributed.core import Status
from local import local_client
from losing import assert_exact, classifier, kill, killing_after, rows, slow_loss

import dps
from dps.cluster.dask.calls import shared_memory
from dps.errors import ClusterError, WorkerLostError
from dps.training.progress import Progress
from dps.training.run.recovery import Recovery
from dps.training.run.supervise import Watcher
from dps.transport.remote import Remote

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def client(mortal: Client) -> Client:
    return mortal


def chunks() -> tuple[Any, Any]:
    X, y = rows()
    return da.from_array(X, chunks=(500, 10)), da.from_array(y, chunks=500)


def test_a_checkpoint_path_that_is_gone_when_a_worker_dies_is_a_warning(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fit"

    def strike() -> None:
        for number in itertools.count():  # a shard may be making the directory again
            path.rename(tmp_path / f"away {number}")
            with contextlib.suppress(IsADirectoryError):
                path.write_text("in its place")
                break
        kill(client, min(client.nthreads()))

    losses = killing_after(monkeypatch, 2, strike)
    with pytest.warns(UserWarning, match=r"a checkpoint could not be written.*Training goes on"):
        model = classifier(client, checkpoint=dps.Checkpoint(path, every=0)).fit(*chunks())
    assert_exact(model)
    assert len(losses) == 1


def test_losses_in_one_long_epoch_count_only_without_progress(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers die within an epoch, each after a further snapshot."""
    configure(fruitless_losses=0)
    fetch, after = Watcher._fetch, Recovery.after
    struck: list[int] = []
    lost: list[Any] = []

    def fetched(self: Watcher) -> bool:
        ends = fetch(self)
        within = self.progress.within
        steps = 0 if within is None else within.steps
        if len(struck) == len(lost) < 2 and steps > max(struck, default=0):
            struck.append(steps)
            client.wait_for_workers(3, timeout=60)
            kill(client, self._plan.ranks[1].worker)
        return ends

    def recovered(self: Recovery, *args: Any) -> Any:
        found = after(self, *args)
        lost[:] = self.losses
        return found

    monkeypatch.setattr(Watcher, "_fetch", fetched)
    monkeypatch.setattr(Recovery, "after", recovered)
    options: dict[str, Any] = {"n_replicas": 2, "max_iter": 1, "batch_size": 100}
    options |= {"mode": dps.Sync(snapshot_every=0), "loss": slow_loss(0.008)}
    model = classifier(client, **options).fit(*chunks())
    assert_exact(model)
    assert len(lost) == 2
    assert {loss.epoch for loss in lost} == {1}


def test_workers_that_are_retired_do_not_count_as_losses_without_progress(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(fruitless_losses=0)
    wanted = len(client.cluster.worker_spec) + 1

    def retire() -> None:
        shards = client.run(lambda dask_worker: len(dask_worker.state.actors))
        (victim, *_) = (worker for worker, n in shards.items() if not n)
        client.retire_workers([victim])

    client.cluster.scale(wanted)
    until(lambda: len(client.nthreads()) >= 4, "another worker is there")
    configure(n_shards=1)
    losses = killing_after(monkeypatch, 0, retire)
    model = classifier(client, loss=slow_loss(0.01)).fit(*chunks())
    assert_exact(model)
    assert len(losses) == 1


def test_too_few_replicas_for_backups_leave_the_closed_epochs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker does not come back."""
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        local_client(2) as two,
    ):
        for nanny in two.cluster.workers.values():  # which do not start them again
            nanny.status = Status.closing_gracefully
        losses = killing_after(monkeypatch, 2, lambda: kill(two, min(two.nthreads())))
        model = classifier(two, mode=dps.Sync(backups=1), max_iter=40)
        with pytest.raises(ClusterError, match=r"died.*cannot go on: backups=1 leaves none of 1"):
            model.fit(*chunks())
        assert len(losses) == 1
        assert model.n_iter_ == len(model.history_) >= 2


class Mine(Exception):
    """An error of a user's."""


@pytest.mark.parametrize(
    ("kind", "on_cluster"),
    [(Mine, True), (MemoryError, False), (SystemExit, False), (KeyboardInterrupt, True)],
)
def test_an_error_of_any_class_leaves_the_attributes_of_the_last_epoch(
    kind: type[BaseException],
    on_cluster: bool,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetch = Watcher._fetch

    def fetched(self: Watcher) -> bool:
        ends = fetch(self)
        if self.progress.closed >= 2:
            raise kind("in a callback")
        return ends

    monkeypatch.setattr(Watcher, "_fetch", fetched)
    model = classifier(client if on_cluster else None, max_iter=100)
    with pytest.raises(kind):
        model.fit(*(chunks() if on_cluster else rows()))
    assert 2 <= model.n_iter_ == len(model.history_) < 100
    assert model.predict(rows()[0]).shape == (len(rows()[0]),)
    monkeypatch.undo()
    model.partial_fit(*rows())
    assert model.history_[-1]["epoch"] == 1


def test_a_callback_that_ends_the_fit_is_heard_after_a_loss(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for the end as it hears of epochs that a loss has interrupted."""
    sklearn_callback = pytest.importorskip("sklearn.callback")
    del sklearn_callback
    read, salvaging = Progress.read_after_death, []

    def salvaged(self: Progress, *args: Any, **options: Any) -> Any:
        salvaging.append(True)
        records = self.history[len(self.job.done) :]
        heard = self.job.on_epochs
        assert heard is not None
        self.history = self.history[: len(self.history) - len(records)]
        self.job.__dict__["on_epochs"] = lambda *given: True
        return read(self, *args, **options)

    monkeypatch.setattr(Progress, "read_after_death", salvaged)
    losses = killing_after(monkeypatch, 2, lambda: kill(client, min(client.nthreads())))
    model = classifier(client, max_iter=100, verbose=1).fit(*chunks())
    assert salvaging
    assert not losses  # there was no other generation
    assert 2 <= model.n_iter_ < 100


def test_a_worker_that_has_died_is_not_asked_for_its_memory(client: Client) -> None:
    """Dask would go on trying to connect."""
    address = min(client.nthreads())
    kill(client, address)
    until(lambda: address not in client.nthreads(), "Dask knows")
    with pytest.raises(WorkerLostError, match="died as it was asked for its memory"):
        shared_memory(client, [address], 20.0)


def test_an_os_error_of_a_shard_is_not_its_loss(client: Client) -> None:
    class Odd:
        async def in_turn(self, method: str) -> None:
            raise OSError(28, "No space left on device")

    future = client.submit(Odd, actor=True)
    until(lambda: client.who_has([future])[future.key], "it is made")
    worker = next(iter(client.who_has([future])[future.key]))
    with pytest.raises(OSError, match="No space left"):
        Remote(worker, future.key, client).call("full", timeout=10)
