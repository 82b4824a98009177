"""A checkpoint path that others use too: their files, their links, other fits, full disks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from conditions import until
from configure import placed
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

import dps
from dps.files import directories
from dps.training.checkpoint import lock as checkpoint_lock
from dps.training.checkpoint.writer import Checkpoints
from dps.training.run import supervise as watch

X = np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
RUN = "8f3c2a1b9d0e"


@pytest.fixture(autouse=True)
def _all_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits here are short: they are looked at more often."""
    monkeypatch.setattr(watch, "_CHECK_EVERY", 0.0)
    monkeypatch.setattr(watch, "_TICK", 0.001)


def fitted(path: Any, resume: bool = False, **options: Any) -> Any:
    given: dict[str, Any] = {"optimizer": "adam", "max_iter": 4, "tol": None, "random_state": 0}
    given |= {"n_replicas": 2, "checkpoint": dps.Checkpoint(path, every=0, keep=2)}
    return dps.LinearClassifier(**placed(given | options)).fit(X, Y, resume=resume)


def manifests(path: Path) -> list[Path]:
    return sorted(path.glob("*/manifest.json"))


def tree(path: Path) -> dict[str, Any]:
    """All files below a path, by name."""
    found = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


@pytest.mark.parametrize("resume", [False, True])
def test_directories_of_others_stay_whatever_they_are_called(resume: bool, tmp_path: Path) -> None:
    saved = dps.LinearClassifier(max_iter=2, tol=None).fit(X, Y)
    strangers = tmp_path / "strangers"
    for name in ("1234567-8f3c2a1b", "20261126-15301200"):  # a job and a commit; a date and a time
        (strangers / name).mkdir(parents=True)
        (strangers / name / "results.csv").write_text("mine")
    saved.save(strangers / "9999999-aaaaaaaa")  # a model of dps, not a checkpoint
    (strangers / "9999998-bbbbbbbb").mkdir()
    (strangers / "9999997-cccccccc").mkdir()
    (strangers / "9999997-cccccccc" / "manifest.json").write_text('{"name": "an app"}')
    (strangers / "9999996-dddddddd").write_text("a file")
    path = tmp_path / "runs"
    shutil.copytree(strangers, path)
    for epochs in (4, 6):
        fitted(path, resume, max_iter=epochs)
    assert tree(strangers).items() <= tree(path).items()
    assert (path / "9999998-bbbbbbbb").is_dir()
    numbers = [int(each.parent.name.partition("-")[0]) for each in manifests(path)]
    assert any(number < 100 for number in numbers)  # the strangers' were not counted on from
    assert dps.load(path / "9999999-aaaaaaaa").n_iter_ == saved.n_iter_


def test_nothing_is_removed_through_a_link(tmp_path: Path) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "runs"
    fitted(path)
    run = manifests(path)[-1].parent
    shutil.copytree(run, elsewhere)
    before = tree(elsewhere)
    number, _, name = run.name.partition("-")
    (path / f"{int(number) + 100:06d}-{name}").symlink_to(elsewhere)
    within = path / f"000000-{name}"
    within.mkdir()
    (within / next(iter(before))).symlink_to(elsewhere / next(iter(before)))
    fitted(path)
    assert tree(elsewhere) == before
    assert (path / f"{int(number) + 100:06d}-{name}").is_symlink()
    assert within.exists()
    assert not run.exists()  # of a fit that this one has seen, and whole


def test_a_checkpoint_with_other_files_in_it_is_left_alone(tmp_path: Path) -> None:
    fitted(tmp_path)
    run = manifests(tmp_path)[-1].parent
    (run / "notes.txt").write_text("mine")
    fitted(tmp_path)
    assert (run / "notes.txt").read_text() == "mine"
    assert (run / "manifest.json").exists()


def test_what_a_killed_fit_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """It was killed before its first checkpoint was whole: its lock names its run."""
    process = started(tmp_path, "stop")
    lock = tmp_path / checkpoint_lock.NAME
    until(lambda: list(tmp_path.glob("*/part-*")), "a part is written")
    process.send_signal(signal.SIGKILL)
    process.wait()
    (run,) = json.loads(lock.read_text())["runs"]
    assert [each.name for each in tmp_path.glob(f"*-{run}")]
    assert not manifests(tmp_path)
    fitted(tmp_path, resume=True)
    assert not list(tmp_path.glob(f"*-{run}"))
    assert not lock.exists()
    assert manifests(tmp_path)


def test_a_second_fit_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    process = started(tmp_path, "wait")
    until(lambda: manifests(tmp_path), "a checkpoint is written")
    before = tree(tmp_path)
    with pytest.raises(FileExistsError, match=rf"another fit \(process {process.pid} of .*path of"):
        fitted(tmp_path)
    assert {n: c for n, c in tree(tmp_path).items() if "lock" not in n} == {
        n: c for n, c in before.items() if "lock" not in n
    }
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert fitted(tmp_path, resume=True).n_iter_ >= 4


def test_of_fits_in_threads_one_has_the_path(tmp_path: Path) -> None:
    results: list[Any] = []
    ready = threading.Barrier(3)

    def run(seed: int) -> None:
        ready.wait()
        try:
            results.append(fitted(tmp_path, random_state=seed, max_iter=200))
        except FileExistsError as error:
            results.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(each, FileExistsError) for each in results) == 2
    assert fitted(tmp_path, resume=False).n_iter_ == 4  # the lock has been given up
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == []


@pytest.mark.parametrize("renewed", [False, True])
def test_of_an_owner_on_another_host_only_the_renewals_are_seen(
    renewed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_lock, "_RENEW_SECONDS", 0.02)
    monkeypatch.setattr(checkpoint_lock, "_STALE_SECONDS", 0.5)
    lock = tmp_path / checkpoint_lock.NAME
    owner = {"token": "x", "host": "another", "process": 1, "started": 0.0, "who": "process 1"}
    ended = threading.Event()

    def renew() -> None:
        renewals = 0
        while not ended.wait(0.02):
            renewals += 1
            beside = lock.with_suffix(".new")
            beside.write_text(json.dumps({**owner, "renewals": renewals}))
            os.replace(beside, lock)

    lock.write_text(json.dumps(owner))
    thread = threading.Thread(target=renew)
    if renewed:
        thread.start()
        with pytest.raises(FileExistsError, match=r"another fit \(process 1\) writes"):
            fitted(tmp_path)
        ended.set()
        thread.join()
    else:
        assert fitted(tmp_path).n_iter_ == 4
        assert not lock.exists()


def test_a_fit_whose_lock_was_taken_over_writes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, look = tmp_path / checkpoint_lock.NAME, Checkpoints.look
    other = tmp_path / "other"

    def taken(self: Checkpoints, *args: Any) -> None:
        if not manifests(tmp_path):
            other.write_text(json.dumps({"token": "of another", "runs": []}))
            os.replace(other, lock)  # in one step, as fits do
        look(self, *args)

    monkeypatch.setattr(Checkpoints, "look", taken)
    with pytest.warns(UserWarning, match=r"another fit has taken over.*Training goes on"):
        assert fitted(tmp_path, max_iter=50).n_iter_ == 50
    assert json.loads(lock.read_text())["token"] == "of another"
    assert not manifests(tmp_path)


# A checkpoint that is being written just then is lost with its path, and the fit says so.
@pytest.mark.filterwarnings("ignore:a checkpoint could not be written")
@pytest.mark.parametrize("how", ["lock", "path", "renamed", "empty"])
def test_a_lock_or_path_that_is_gone_is_written_again(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_lock, "_RENEW_SECONDS", 0.02)
    path, look, gone = tmp_path / "checkpoints", Checkpoints.look, []
    lock = path / checkpoint_lock.NAME

    def lose(self: Checkpoints, *args: Any) -> None:
        if not gone and manifests(path):
            gone.append(how)
            if how == "lock":
                lock.unlink()
            elif how == "path":
                shutil.rmtree(path, ignore_errors=True)  # the lock is written meanwhile
            elif how == "renamed":
                path.rename(tmp_path / "elsewhere")
            else:
                lock.write_text("")
            until(lambda: lock.exists() and lock.read_text(), "the lock is written again")
        look(self, *args)

    monkeypatch.setattr(Checkpoints, "look", lose)
    fitted(path, max_iter=50)
    assert gone
    assert json.loads(manifests(path)[-1].read_text())["content"] is not None
    assert fitted(path, resume=True, max_iter=50).n_iter_ == 50
    assert not lock.exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="where the host counts ticks")
def test_the_owner_of_a_lock_is_known_whatever_the_clock_says(tmp_path: Path) -> None:
    """The start of a process by the clock moves when the clock is set, its ticks do not."""
    process = started(tmp_path, "wait")
    try:
        lock = tmp_path / checkpoint_lock.NAME
        until(lambda: manifests(tmp_path), "the first checkpoint")
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        assert json.loads(lock.read_text())["started"] == int(ticks)
        with pytest.raises(FileExistsError, match=f"process {process.pid}"):
            fitted(tmp_path)
    finally:
        process.kill()
        process.wait()


class OddFiles(MemoryFileSystem):  # type: ignore[misc]
    """A file system with errors of its own, as object stores have."""

    protocol = "odd"
    fails: ClassVar[set[str]] = set()

    def cat_file(self, path: str, *args: Any, **more: Any) -> Any:
        if "cat_file" in self.fails:
            raise KeyError("no such bucket")
        return super().cat_file(path, *args, **more)

    def ls(self, path: str, *args: Any, **more: Any) -> Any:
        if "ls" in self.fails:
            raise RuntimeError("try again")
        return super().ls(path, *args, **more)

    def size(self, path: str) -> Any:
        if "size" in self.fails:
            raise ValueError("no size")
        return super().size(path)


@pytest.mark.parametrize("call", ["cat_file", "ls", "size"])
def test_errors_of_a_file_system_name_the_path(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register_implementation("odd", OddFiles, clobber=True)
    fitted("odd://checkpoints", max_iter=2)
    monkeypatch.setattr(OddFiles, "fails", {call})
    try:
        with pytest.raises((OSError, ValueError), match=r"odd://checkpoints.*(bucket|again|size)"):
            fitted("odd://checkpoints", resume=True, max_iter=4)
    finally:
        monkeypatch.undo()
        OddFiles.store.clear()


@pytest.mark.parametrize("damage", ["directory", "loop"])
def test_a_checkpoint_that_cannot_be_read_is_passed_over(damage: str, tmp_path: Path) -> None:
    for epochs in (2, 4):
        fitted(tmp_path, resume=True, max_iter=epochs)
    newest = manifests(tmp_path)[-1].parent
    part = next(newest.glob("part-*"))
    part.unlink()
    if damage == "directory":
        part.mkdir()
    else:
        part.symlink_to(part)
    with pytest.warns(UserWarning, match=rf"{newest.name}.*goes on from the checkpoint before"):
        assert fitted(tmp_path, resume=True, max_iter=6).n_iter_ == 6


def test_what_shards_wrote_elsewhere_is_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a worker that has joined, and does not have the network drive."""
    fitted(tmp_path, max_iter=2)
    before, replace = manifests(tmp_path), os.replace

    def gone(beside: str, place: str) -> None:
        if "part-" in place:
            os.unlink(beside)
        else:
            replace(beside, place)

    monkeypatch.setattr(directories, "_replace", gone)
    with pytest.warns(UserWarning, match=r"is not seen here: give a path that all workers share"):
        fitted(tmp_path, resume=True, max_iter=5)
    assert manifests(tmp_path) == before


def started(path: Path, how: str) -> subprocess.Popen[bytes]:
    harness = str(Path(__file__).parents[1] / "harness")
    paths = os.pathsep.join(filter(None, (harness, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, __file__, str(path), how]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths})


def child(path: Path, how: str) -> None:
    """A fit that does not end: it stands still before its first manifest, or after it."""
    watch._CHECK_EVERY, watch._TICK = 0.0, 0.001
    replace = os.replace

    def stopping(beside: str, place: str) -> None:
        if how == "wait":
            replace(beside, place)
        if "manifest" in place:
            threading.Event().wait()
        if how == "stop":
            replace(beside, place)

    directories._replace = stopping
    fitted(path, max_iter=10_000_000)


if __name__ == "__main__":
    child(Path(sys.argv[1]), sys.argv[2])


@pytest.mark.parametrize("every", ["", "5 min", "-1s", -1, True, None])
def test_what_is_no_time_is_refused(every: Any) -> None:
    with pytest.raises(ValueError, match=r"The 'every' parameter of Checkpoint must be .* Got"):
        dps.Checkpoint("memory://fits", every=every)
