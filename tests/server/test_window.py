"""The window by itself: waits, fences, snapshots, owners that die."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conditions import until
from groups import MODES, Group, at_once

from dps import Async
from dps.errors import FencedError, StalledError, StoppedError, WorkerLostError
from dps.server.group import operations
from dps.server.group.window import ABORTED, FINISHED, Field, Window, WindowSpec, Word
from dps.server.memory import files as memory
from dps.server.memory.files import SharedFile
from dps.server.memory.lease import LOST
from dps.server.shard import Initial
from dps.server.store.store import Store, StoreSpec, StoreWord
from dps.training.replica.channel import Channel
from dps.transport.mapped import MappedLink

SIZE = 40


@pytest.mark.parametrize("far", [[], [(1, 0)]], ids=["mapped", "far"])
def test_ranks_meet_at_every_step_and_see_the_same(far: Any) -> None:
    def steps(channel: Channel, rank: int) -> list[float]:
        grad = np.full(SIZE, float(rank))
        return [float(channel.push_pull(grad, 2, 0.0).sum()) for _ in range(200)]

    with Group(n_ranks=3, size=SIZE, far=far) as group:
        seen = at_once(
            [lambda r=rank, c=channel: steps(c, r) for rank, channel in enumerate(group.channels)]  # type: ignore[misc]
        )
    assert seen[0] == seen[1] == seen[2]
    # Each step moves every element by 0.5 * (0 + 1 + 2) / 6.
    np.testing.assert_allclose(seen[0][-1], -SIZE * 200 * 0.25)


def test_reductions_are_the_same_for_all_and_do_not_mix() -> None:
    with Group(n_ranks=4, far=[(2, 0)]) as group:
        seen = at_once(
            [
                lambda r=rank, c=channel: [list(c.reduce([r, k])) for k in range(1, 300)]  # type: ignore[misc]
                for rank, channel in enumerate(group.channels)
            ]
        )
    assert seen[0] == [[6.0, 4.0 * k] for k in range(1, 300)]
    assert all(values == seen[0] for values in seen)


@pytest.mark.parametrize("far", [[], [(0, 0)]], ids=["mapped", "far"])
def test_a_rank_that_does_not_come_is_named(far: Any) -> None:
    with Group(size=SIZE, far=far, timeout=0.5) as group:
        with pytest.raises(StalledError) as caught:
            group.channels[0].push_pull(np.zeros(SIZE), 1, 0.0)
        assert caught.value.rank == 1


@pytest.mark.parametrize("far", [[], [(1, 0)]], ids=["mapped", "far"])
@pytest.mark.parametrize("mode", [MODES["sync"](), MODES["allreduce"]()], ids=["sync", "allreduce"])
def test_the_bits_are_the_same_if_one_rank_applies_for_all(
    mode: Any, far: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    grads = np.random.default_rng(0).normal(size=(3, 50, SIZE))

    def steps(channel: Channel, rank: int) -> list[bytes]:
        seen = []
        for number, grad in enumerate(grads[rank]):
            seen.append(channel.push_pull(grad, rank + 1, 0.0).tobytes())
            if number % 10 == 9:
                seen.append(channel.mean(grad, 1, [float(rank)])[0].tobytes())
                seen.append(channel.broadcast(grad, [7.0])[0].tobytes())
        return seen

    def run(little: int) -> list[Any]:
        for limit in ("_LITTLE_WORK", "_LITTLE_WORK_PER_RANK"):
            monkeypatch.setattr(f"dps.server.group.window.{limit}", little)
        with Group(mode, n_ranks=3, size=SIZE, far=far) as group:
            assert group.windows[0].words.load(Word.ONE_APPLIES) == bool(little)
            return at_once([lambda r=r, c=c: steps(c, r) for r, c in enumerate(group.channels)])  # type: ignore[misc]

    alone, together = run(1 << 30), run(0)
    assert alone == together == [alone[0]] * 3


@pytest.mark.parametrize("dies", [True, False], ids=["dies", "hangs"])
@pytest.mark.parametrize("little", [0, 1 << 30], ids=["all apply", "one applies"])
def test_a_rank_that_is_lost_after_all_have_arrived_is_named(
    little: int, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dps.server.group.window._LITTLE_WORK", little)
    monkeypatch.setattr("dps.server.group.window._LITTLE_WORK_PER_RANK", little)
    with Group(n_ranks=3, size=SIZE, timeout=0.5) as group:
        (window,), waiting = group.windows, group.channels[:2]

        def arrive() -> None:  # as the last of three, and do nothing more
            until(lambda: window.words.load(Word.COUNT) == 2, "the others have arrived")
            window.words.rank_store(2, Field.ARRIVED, 1)
            window.words.store(Word.COUNT, 0)
            if not little:
                window.words.store(Word.ARRIVED, 1)
            if dies:
                window.words.rank_store(2, Field.LEASE, LOST)

        *ended, _ = at_once(
            [*(lambda c=channel: c.push_pull(np.ones(SIZE), 1, 0.0) for channel in waiting), arrive]  # type: ignore[misc]
        )
    assert [type(error) for error in ended] == [WorkerLostError if dies else StalledError] * 2
    assert [error.rank for error in ended] == [2, 2]


@pytest.mark.parametrize("far", [[], [(0, 0)]], ids=["mapped", "far"])
def test_stopping_ends_a_wait(far: Any) -> None:
    with Group(size=SIZE, far=far) as group:
        (window,) = group.windows

        def stop() -> None:
            while not window.words.rank_load(0, Field.ARRIVED):
                continue
            window.stop(ABORTED)

        ended, _ = at_once([lambda: group.channels[0].push_pull(np.zeros(SIZE), 1, 0.0), stop])
        assert isinstance(ended, StoppedError)


def test_the_first_reason_to_stop_stays() -> None:
    with Group() as group:
        (window,) = group.windows
        window.stop(FINISHED)
        window.stop(ABORTED)
        assert window.stopped == FINISHED


def test_a_rank_is_taken_once() -> None:
    with Group(n_ranks=1) as group:
        (window,) = group.windows
        with pytest.raises(FencedError, match="started twice"):
            MappedLink(window, 0, 2, 30.0).claim()
        operations.check_fence(window, 0, 1)
        with pytest.raises(FencedError, match="attempt 2 refused"):
            operations.check_fence(window, 0, 2)


@pytest.mark.parametrize("far", [[], [(0, 0)]], ids=["mapped", "far"])
def test_no_snapshot_is_taken_over_half_a_push(far: Any) -> None:
    size, rounds = 1 << 15, 400
    with Group(Async(), size=size, far=far, rate=1.0) as group:
        (window,) = group.windows
        pushing, closing = group.channels

        def push() -> None:
            for _ in range(1, rounds):
                pushing.push_pull(np.ones(size), 1, 0.0)
            pushing.staleness()  # and nothing is under way

        torn = []

        def snapshot() -> None:
            for epoch in range(rounds):
                closing._first.call(operations.snapshot_epoch, epoch)
                values = window.store.snapshots.kept(epoch + 1)[0][0]
                torn.append(values.min() != values.max())

        at_once([push, snapshot])
        assert torn == [False] * rounds
        assert (window.store.params == -(rounds - 1.0)).all()


def test_a_snapshot_that_is_being_written_is_not_read() -> None:
    with Group(n_ranks=1, size=SIZE) as group:
        (window,) = group.windows
        window.store.keep(3, np.ones(SIZE), np.empty((0, SIZE)), 7)
        assert window.store.snapshots.kept(3)[1] == 7
        window.store.words.store(StoreWord.SNAPSHOT_1, 0)  # as it is in the middle
        for epochs in (1, 3, 5):
            with pytest.raises(LookupError, match=f"after {epochs} epochs"):
                window.store.snapshots.kept(epochs)
        assert window.store.snapshots.kept(0)[1] == 0  # the other place


def test_a_file_whose_owner_was_killed_is_found_and_swept() -> None:
    code = (
        "import signal\nfrom dps.server.memory.files import SharedFile\n"
        "file = SharedFile.create('dead', 8192)\nprint(file.path, flush=True)\nsignal.pause()\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        path = memory.folder() / os.path.basename(owner.stdout.readline().strip())
    mapped = SharedFile.open(path)
    assert not mapped.owner_is_gone()
    assert path not in memory.sweep()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    mapped.memory[0] = 1  # the mapping outlives its owner
    assert mapped.owner_is_gone()
    assert path not in memory.sweep()  # what it holds may be wanted: it is marked
    assert path not in memory.sweep()
    assert path in memory.sweep(grace=0.0)
    assert not path.exists()
    mapped.close()


def test_an_owner_never_takes_itself_for_dead() -> None:
    file = SharedFile.create("alive", 8192)
    assert not file.owner_is_gone()
    file.close()
    assert not file.path.exists()


def test_no_room_for_a_file_gives_private_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory, "_allocate", full)
    store = Store.create(StoreSpec("f00d", 0, 40, "float64"), np.zeros((1, 40)), shared=True)
    assert store.file is None
    assert "No space" in str(store.unshared)
    window = Window.create(WindowSpec("f00d", 1, store.spec), store, shared=True)
    assert window.file is None
    assert not list(memory.folder().glob("dps-f00d-*"))


def taken(file: SharedFile) -> int:
    return file.path.stat().st_blocks * 512


@pytest.mark.parametrize("portable", [memory.PORTABLE, True])
def test_slots_by_keys_take_what_a_batch_touches(
    portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "PORTABLE", portable)
    ranks, rows, width = 8, 1 << 16, 16
    spec = StoreSpec("f00d", 0, rows * width, "float32", key_width=width, n_snapshots=0)
    store = Store.create(spec, np.zeros((1, spec.size)))
    window = Window.create(WindowSpec("f00d", ranks, spec), store, shared=True)
    found = Window.find(window.spec, window.card)
    file = window.file
    assert file is not None
    table = rows * (4 * width + 8)  # and keys
    assert taken(file) < 1.1 * table  # the mean of all, and no slots yet
    before = taken(file)
    there = found.grow(5, 1000 * 4 * width)
    assert 1000 * 4 * width <= there <= 2000 * 4 * width
    found.slots[5, : 1000 * width] = 7.0
    found.keys[5, :1000] = 3
    assert taken(file) - before < 0.05 * table
    assert window.grow(5, 10**9) == 4 * spec.size
    np.testing.assert_array_equal(found.slots[5, : 1000 * width], 7.0)
    np.testing.assert_array_equal(found.keys[5, :1000], 3)
    window.close()
    with pytest.raises(StoppedError):
        found.grow(6, 1000)


@pytest.mark.skipif(memory.PORTABLE, reason="without fallocate room is taken by writing")
def test_a_file_needs_room_only_for_what_is_committed() -> None:
    most = shutil.disk_usage(memory.folder()).total
    file = SharedFile.create("f00d", 3 * most, 8192)
    file.commit(2 * most, 4096)
    file.memory[2 * most] = 7
    assert taken(file) < 1 << 20
    with pytest.raises(OSError, match="No space"):
        file.commit(8192, 2 * most)
    assert file.memory[2 * most] == 7
    file.close()


def test_a_shard_has_a_slot_for_each_host_that_sends_to_it() -> None:
    size, hosts, ranks = 10_000_000 // 8, 8, 128
    store = StoreSpec("f00d", 0, size, "float32")
    leaders = tuple(range(0, ranks, ranks // hosts))
    together = WindowSpec("f00d", ranks, store, members=leaders)
    assert together.shapes()["slots"][0][0] == hosts
    nbytes = sum(
        int(np.prod(shape)) * np.dtype(dtype).itemsize
        for shape, dtype in together.shapes().values()
    )
    assert 8 * nbytes < 0.4 * 2**30  # of eight shards
    assert replace(together, members=(), quorum=120).shapes()["slots"][0][0] == 2 * ranks


def test_a_forked_child_leaves_the_file_and_its_lock_to_its_parent() -> None:
    code = (
        "import os, signal\nfrom dps.server.memory.files import SharedFile\n"
        "file = SharedFile.create('f0f0', 8192)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    print('child', os.getpid(), flush=True)\n"
        "    signal.pause()\n"
        "brief = os.fork()\n"
        "if not brief:\n"
        "    raise SystemExit  # with all that an interpreter does at its end\n"
        "os.waitpid(brief, 0)\n"
        "print('file', file.path, file.path.exists(), flush=True)\nsignal.pause()\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        said = dict(line.split(maxsplit=1) for line in (next(owner.stdout), next(owner.stdout)))
    name, exists = said["file"].split()
    assert exists == "True"
    mapped = SharedFile.open(Path(name))
    assert not mapped.owner_is_gone()
    owner.kill()
    owner.wait()
    assert mapped.owner_is_gone()  # although the child lives
    mapped.close()
    os.kill(int(said["child"]), signal.SIGKILL)


def test_what_is_all_the_same_is_not_sent_to_a_shard() -> None:
    state = np.stack([np.full(1_000_000, 0.1), np.arange(1e6)])
    spec = Initial.of(np.zeros(1_000_000), state[:1])
    assert len(pickle.dumps(spec)) < 1000
    assert spec.rows == (0.0, 0.1)
    for held, given in zip(Initial.of(state[1], state).rows, state[[1, 0, 1]], strict=True):
        np.testing.assert_array_equal(np.broadcast_to(held, given.shape), given)
    for holds in (True, False):
        made = StoreSpec("f00d", 0, 1_000_000, "float64", 1, holds)
        [kept] = Store.create(made, spec.rows).snapshots.pieces(0)
        np.testing.assert_array_equal(kept.values, [np.zeros(1_000_000), state[0]])
    assert Initial.of(np.zeros(0), np.zeros((1, 0))).size == 0
