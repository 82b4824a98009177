"""The window by itself: waits, fences, repeated messages, snapshots, owners that die."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from dps.errors import FencedError, NonFiniteError, StalledError, StoppedError
from dps.modes import asynchronous, synchronous
from dps.optimizers import SGD
from dps.optimizers.update import Update
from dps.server import memory, operations
from dps.server.links import MappedLink
from dps.server.memory import SharedFile
from dps.server.window import ABORTED, Field, Window, WindowSpec, Word


def window(n_ranks: int, size: int = 40, **options: Any) -> Window:
    spec = WindowSpec("f00d", 0, n_ranks, size, "float64", 0, True, 16, "digest")
    update = Update(SGD(), 0.0, 0.0, ((0, size, False),))
    return Window.create(spec, update=update, shared=False, **options)


def links(shard: Window, timeout: float = 30.0) -> list[MappedLink]:
    return [MappedLink(shard, rank, 1, timeout) for rank in range(shard.spec.n_ranks)]


def in_threads(functions: list[Any]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_ranks_meet_at_every_step_and_see_the_same() -> None:
    shard = window(3)
    seen: dict[int, list[float]] = {}

    def rank(link: MappedLink, number: int) -> Any:
        def run() -> None:
            seen[number] = [
                float(link.run(synchronous.update, step, np.full(40, number), 2, step, 0.5).sum())
                for step in range(1, 200)
            ]

        return run

    in_threads([rank(link, number) for number, link in enumerate(links(shard))])
    assert seen[0] == seen[1] == seen[2]
    # Each step moves every element by 0.5 * (0 + 1 + 2) / 6.
    np.testing.assert_allclose(seen[0][-1], -40 * 199 * 0.25)


def test_reductions_are_the_same_for_all_and_do_not_mix() -> None:
    shard = window(4)
    seen: dict[int, list[list[float]]] = {}

    def rank(link: MappedLink, number: int) -> Any:
        def run() -> None:
            seen[number] = [
                list(link.run(operations.reduce, k, [number, k])) for k in range(1, 300)
            ]

        return run

    in_threads([rank(link, number) for number, link in enumerate(links(shard))])
    assert seen[0] == [[6.0, 4.0 * k] for k in range(1, 300)]
    assert all(values == seen[0] for values in seen.values())


def test_means_and_broadcasts_follow_each_other_and_do_not_mix() -> None:
    shard = window(4)
    seen: dict[int, list[list[float]]] = {}

    def rank(link: MappedLink, number: int) -> Any:
        def run() -> None:
            seen[number] = []
            for k in range(1, 600, 2):
                values = np.full(40, 4.0 * k + number)
                mean, sums = link.run(operations.mean, k, values, 2, [number, k])
                seen[number].append([*set(mean.tolist()), *sums])
                given = np.full(40, -k, float) if number == 0 else None
                ahead, notes = link.run(operations.broadcast, k + 1, given, [k + 10.0 * number])
                seen[number].append([*set(ahead.tolist()), *notes])

        return run

    in_threads([rank(link, number) for number, link in enumerate(links(shard))])
    wanted = [[[(16.0 * k + 6) / 8, 6.0, 4.0 * k], [-k, k]] for k in range(1, 600, 2)]
    assert seen[0] == [row for pair in wanted for row in pair]
    assert all(values == seen[0] for values in seen.values())


def test_a_broadcast_that_comes_again_finds_what_was_said() -> None:
    shard = window(2)
    first, second = links(shard)
    second.start(operations.broadcast, 1, None, [0.0])
    for values in (np.full(40, 2.0), np.full(40, 3.0)):  # the second one is late, and ignored
        assert first.run(operations.broadcast, 1, values, [5.0])[0][0] == 2.0
    values, notes = second.finish()
    assert (values[0], *notes) == (2.0, 5.0)


def test_a_broadcast_that_comes_again_after_the_next_sets_nobody_back() -> None:
    shard = window(2)
    for number in (1, 2):
        first, second = links(shard)
        second.start(operations.broadcast, number, None, [])
        first.run(operations.broadcast, number, np.ones(40), [])
        second.finish()
    for rank, link in enumerate(links(shard)):
        link.run(operations.broadcast, 1, np.zeros(40), [])
        assert shard.words.rank_load(rank, Field.ARRIVED) == 2
        assert shard.words.rank_load(rank, Field.DONE) == 2
    assert (shard.total == 1.0).all()


def test_what_cannot_be_broadcast_is_an_error_of_rank_0() -> None:
    first, second = links(window(2), timeout=0.5)
    second.start(operations.broadcast, 1, None, [])
    with pytest.raises(NonFiniteError, match="an update overflowed"):
        first.run(operations.broadcast, 1, np.full(40, np.inf), [])
    with pytest.raises(StalledError):
        second.finish()
    with pytest.raises(ValueError, match="8 notes at most, got 9"):
        first.run(operations.mean, 2, np.zeros(40), 1, range(9))


def test_a_rank_that_does_not_come_is_named() -> None:
    first, _ = links(window(2), timeout=0.5)
    with pytest.raises(StalledError) as caught:
        first.run(synchronous.update, 1, np.zeros(40), 1, 1, 0.1)
    assert caught.value.rank == 1


def test_stopping_ends_a_wait() -> None:
    shard = window(2)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            links(shard)[0].run(synchronous.update, 1, np.zeros(40), 1, 1, 0.1)
        except StoppedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    shard.stop(ABORTED)
    thread.join()
    assert len(errors) == 1


def test_a_rank_is_taken_once() -> None:
    shard = window(1)
    links(shard)[0].claim()
    with pytest.raises(FencedError, match="started twice"):
        MappedLink(shard, 0, 2, 30.0).claim()
    operations.check_fence(shard, 0, 1)
    with pytest.raises(FencedError, match="attempt 2 refused"):
        operations.check_fence(shard, 0, 2)


@pytest.mark.parametrize("repeat", [1, 3])
def test_a_message_that_comes_again_changes_nothing(repeat: int) -> None:
    sync, free = window(1), window(1)
    for _ in range(repeat):
        links(sync)[0].run(synchronous.update, 1, np.ones(40), 1, 1, 0.5)
        links(free)[0].run(asynchronous.update, 1, np.ones(40), 1, 0.5)
    assert (sync.params == -0.5).all()
    assert (free.params == -0.5).all()
    assert free.words.load(Word.VERSION) == 1


def test_no_snapshot_is_taken_over_half_a_push() -> None:
    shard = window(2, size=1 << 15)
    pushing, closing = links(shard)
    rounds = 400

    def push() -> None:
        for sequence in range(1, rounds):
            pushing.run(asynchronous.update, sequence, np.ones(1 << 15), 1, 1.0)

    torn = []

    def snapshot() -> None:
        for epoch in range(rounds):
            closing.run(asynchronous.close_gate)
            closing.run(operations.snapshot_epoch, epoch)
            values = shard.snapshots[epoch % 2][0]
            torn.append(values.min() != values.max())
            closing.run(asynchronous.open_gate)

    in_threads([push, snapshot])
    assert not any(torn)
    assert (shard.params == -(rounds - 1.0)).all()


def test_a_file_whose_owner_was_killed_is_found_and_swept() -> None:
    code = (
        "import signal\nfrom dps.server.memory import SharedFile\n"
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
    spec = WindowSpec("f00d", 0, 1, 40, "float64", 0, True, 16, "digest")
    shard = Window.create(spec, update=None, shared=True)
    assert shard.file is None
    assert not list(memory.folder().glob("dps-f00d-*"))
