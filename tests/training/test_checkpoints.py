"""Checkpoints: what a fit goes on from after a crash, and what happens to damaged files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from cases import slow
from configure import placed
from inside import carry_of
from own_models import Centred, Softmax

import dps
from dps._runtime.shared.words import S_SNAPSHOT_0, S_SNAPSHOT_1
from dps.files import directories
from dps.losses import LogLoss
from dps.optimizers import AdamW
from dps.server.store import snapshots
from dps.training.checkpoint import files, writer as checkpoints
from dps.training.replica.steps import Steps
from dps.training.run import launch, supervise as watch
from dps.training.run.supervise import Watcher

EPOCHS = 7


@pytest.fixture(autouse=True)
def _all_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits here are short: they are looked at more often."""
    monkeypatch.setattr(watch, "_CHECK_EVERY", 0.0)
    monkeypatch.setattr(watch, "_TICK", 0.001)


def data(sparse: bool = False, rows: int = 600) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 8)).astype(np.float32)
    y = (X @ rng.normal(size=8) + rng.logistic(size=rows) > 0).astype(int)
    if sparse:
        X = scipy.sparse.random_array((rows, 5000), density=0.001, format="csr", random_state=rng)
    return X, y


def manifests(path: Path) -> list[Path]:
    return sorted(path.glob("*/manifest.json"))


def made(kind: Any, path: Any = None, **options: Any) -> Any:
    checkpoint = None if path is None else dps.Checkpoint(path, every=0)
    given = {"max_iter": EPOCHS, "tol": None, "random_state": 0, "n_replicas": 2}
    return kind(**placed(given | {"checkpoint": checkpoint} | options))


CASES = {
    "adam": (dps.LinearClassifier, {"optimizer": "adam", "batch_size": 64}, False),
    "mean": (dps.LinearClassifier, {"optimizer": "sgd", "average": True}, False),
    "allreduce": (dps.LinearClassifier, {"optimizer": "momentum", "mode": "allreduce"}, False),
    "narrow": (dps.LinearClassifier, {"optimizer": "sgd"}, True),
    "best": (
        dps.LinearClassifier,
        {"optimizer": "sgd", "learning_rate": 2.0, "early_stopping": True, "n_iter_no_change": 20},
        False,
    ),
    "table": (
        dps.FMClassifier,
        {"max_embeddings": 4000, "hidden_layer_sizes": (4,), "learning_rate": "constant"},
        True,
    ),
    "own": (dps.ModelClassifier, {"model": Centred, "batch_size": 64}, False),
    "mlp": (
        dps.MLPClassifier,
        {
            "hidden_layer_sizes": (8,),
            "learning_rate": "constant",
            "optimizer": AdamW(weight_decay=0.1),  # "auto" asks fits of a share of max_iter
        },
        False,
    ),
}


@pytest.mark.filterwarnings("ignore:the loss still improved")
@pytest.mark.parametrize("kind", [dps.LinearClassifier, dps.FMClassifier, dps.MLPClassifier])
def test_a_resumed_fit_keeps_the_strength_that_held_out_rows_chose(
    kind: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 120))
    y = X[:, :3].sum(axis=1) + 4 * rng.logistic(size=400) > 0
    begun = made(kind, tmp_path, max_iter=2, tol=1e-9).fit(X, y)
    assert len(begun.alpha_path_) > 1
    parts = made(kind, tmp_path, max_iter=20, tol=None).fit(X, y, resume=True)
    assert parts.alpha_ == begun.alpha_
    np.testing.assert_array_equal(parts.alpha_path_, begun.alpha_path_)
    assert len(parts.history_) > 2


@pytest.mark.parametrize("case", CASES)
def test_a_fit_that_is_resumed_ends_in_the_bits_of_one_that_nobody_disturbed(
    case: str, tmp_path: Path
) -> None:
    kind, options, sparse = CASES[case]
    X, y = data(sparse)
    whole = made(kind, **options).fit(X, y)
    made(kind, tmp_path, **options | {"max_iter": 4}).fit(X, y, resume=True)
    parts = made(kind, tmp_path, **options).fit(X, y, resume=True)
    assert [r["epoch"] for r in parts.history_] == list(range(1, EPOCHS + 1))
    for one, other in zip(whole.history_, parts.history_, strict=True):
        assert (one["loss"], one["rows"]) == (other["loss"], other["rows"])
    np.testing.assert_array_equal(carry_of(whole).params, carry_of(parts).params)
    np.testing.assert_array_equal(carry_of(whole).state, carry_of(parts).state)
    if case == "own":
        with pytest.raises(ValueError, match=r"model was own_models.Centred, and is own_mod"):
            parts.set_params(model=Softmax).fit(X, y, resume=True)
        return
    np.testing.assert_array_equal(whole.predict_proba(X), parts.predict_proba(X))
    again = made(kind, tmp_path, **options).fit(X, y, resume=True)  # of which nothing is left
    np.testing.assert_array_equal(carry_of(whole).params, carry_of(again).params)
    assert "after 7 epochs" in str(again.fit_report_)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({}, {"n_replicas": 3}),
        ({"n_shards": 3}, {"n_shards": 1}),
        ({"optimizer": "lbfgs", "batch_size": "auto"}, {"n_replicas": 1}),
        ({"mode": "async"}, {"n_replicas": 1}),
    ],
)
def test_other_replicas_and_shards_go_on_to_the_same_loss(
    then: dict[str, Any], now: dict[str, Any], tmp_path: Path
) -> None:
    X, y = data()
    options = {"optimizer": "adam", "batch_size": 64, "tol": 1e-6, "max_iter": 100} | then
    whole = made(dps.LinearClassifier, **options).fit(X, y)
    made(dps.LinearClassifier, tmp_path, **options | {"max_iter": 3, "tol": None}).fit(X, y)
    parts = made(dps.LinearClassifier, tmp_path, **options | now).fit(X, y, resume=True)
    assert parts.history_[-1]["epoch"] == len(parts.history_) > 3
    assert parts.loss_ == pytest.approx(whole.loss_, abs=2e-2)


@dataclass(frozen=True)
class LateLoss(LogLoss):
    """A loss that takes its time."""

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        time.sleep(0.003)
        return LogLoss.evaluate(self, y, raw, weight, out)


@pytest.mark.parametrize(
    ("mode", "epochs"),
    [(dps.Sync(snapshot_every=0), 0), *slow((dps.AllReduce(snapshot_every=0), 1))],
)
def test_a_fit_is_resumed_in_the_middle_of_an_epoch(
    mode: Any, epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (X, y), path = data(), tmp_path / "fit"
    options: dict[str, Any] = {"loss": LateLoss(), "batch_size": 30, "max_iter": epochs + 2}
    options |= {"optimizer": "adam", "early_stopping": True, "n_iter_no_change": 99}
    whole = made(dps.LinearClassifier, **options).fit(X, y)
    fetch = Watcher._fetch

    def interrupted(self: Watcher) -> bool:
        ends = fetch(self)
        found = files.newest(str(path)) if manifests(path) else None
        if found is not None and found.interim is not None and len(found.history) >= epochs:
            raise KeyboardInterrupt
        return ends

    with monkeypatch.context() as patch:
        patch.setattr(Watcher, "_fetch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(dps.LinearClassifier, path, mode=mode, **options).fit(X, y)
    found = files.newest(str(path))
    assert found is not None
    assert found.interim is not None
    assert 0 < found.interim.within.steps < found.interim.within.epoch_steps
    begun: list[int] = []
    epoch = Steps.epoch

    def noted(self: Steps, number: int, until: int, pause: Any, first: Any) -> Any:
        begun.append(first[0])
        return epoch(self, number, until, pause, first)

    monkeypatch.setattr(Steps, "epoch", noted)
    shutil.copytree(tmp_path / "fit", tmp_path / "another")
    parts = made(dps.LinearClassifier, tmp_path / "fit", mode=mode, **options)
    parts.fit(X, y, resume=True)
    assert begun == [found.interim.within.steps] * 2 + [0] * 2
    for one, two in zip(whole.history_, parts.history_, strict=True):
        assert (one["loss"], one["rows"]) == (two["loss"], two["rows"])
    np.testing.assert_array_equal(carry_of(whole).params, carry_of(parts).params)
    np.testing.assert_array_equal(carry_of(whole).state, carry_of(parts).state)
    begun.clear()
    options["n_replicas"] = 3  # who have other rows begin the epoch again
    made(dps.LinearClassifier, tmp_path / "another", mode=mode, **options).fit(X, y, resume=True)
    assert begun == [0] * 6


def child(path: Path, mode: str) -> None:
    """The code of the test's processes, which may be killed."""
    X, y = data(rows=20_000)
    often(made(dps.LinearClassifier, path, **SLOW, mode=mode)).fit(X, y, resume=True).save(
        path.with_suffix(".model")
    )


SLOW: dict[str, Any] = {"optimizer": "adam", "batch_size": 64, "max_iter": 150}


def often(estimator: Any) -> Any:
    return estimator.set_params(checkpoint=dps.Checkpoint(estimator.checkpoint.path, every=0.05))


def started(path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    harness = str(Path(__file__).parents[1] / "harness")
    paths = os.pathsep.join(filter(None, (harness, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, __file__, str(path), *arguments]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths})


@pytest.mark.parametrize("mode", ["sync", *slow("allreduce")])
def test_a_client_that_is_killed_is_resumed_in_another_process_with_the_same_bits(
    mode: str, tmp_path: Path
) -> None:
    path = tmp_path / "fit"
    victim = started(path, mode)
    while not manifests(path) and victim.poll() is None:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    done = len(files.newest(str(path)).history)  # type: ignore[union-attr]
    assert 0 < done < SLOW["max_iter"]
    X, y = data(rows=20_000)
    assert started(path, mode).wait() == 0
    whole = made(dps.LinearClassifier, **SLOW, mode=mode).fit(X, y)
    resumed = dps.load(path.with_suffix(".model"))
    assert resumed.n_iter_ == SLOW["max_iter"]
    np.testing.assert_array_equal(carry_of(whole).params, carry_of(resumed).params)
    np.testing.assert_array_equal(carry_of(whole).state, carry_of(resumed).state)


@pytest.mark.parametrize("point", ["manifest", *slow("part", "clear")])
def test_a_crash_at_any_point_of_the_writing_leaves_one_to_go_on_from(
    point: str, tmp_path: Path
) -> None:
    path = tmp_path / "fit"
    X, y = data()
    made(dps.LinearClassifier, path, optimizer="adam", max_iter=3).fit(X, y)
    assert started(path, "crash", point).wait() == 9
    found = files.newest(str(path))
    assert found is not None
    assert len(found.history) == {"part": 3, "manifest": 3, "clear": EPOCHS}[point]
    whole = made(dps.LinearClassifier, optimizer="adam").fit(X, y)
    parts = made(dps.LinearClassifier, path, optimizer="adam").fit(X, y, resume=True)
    np.testing.assert_array_equal(whole.coef_, parts.coef_)


def crash(path: Path, point: str) -> None:
    """Go on from a checkpoint, and die in the middle of writing the next one."""
    replace, clear = directories._replace, checkpoints.clear

    def replaced(beside: str, place: str) -> None:
        if f"/{point}" in place:
            os._exit(9)
        replace(beside, place)

    def cleared(*given: Any) -> None:
        os._exit(9) if point == "clear" else clear(*given)

    directories._replace = replaced
    checkpoints.clear = cleared
    estimator = made(dps.LinearClassifier, path, optimizer="adam")
    estimator.set_params(checkpoint=dps.Checkpoint(path, every="1h")).fit(*data(), resume=True)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the checkpoints of epochs 3 and 5."""
    path = tmp_path_factory.mktemp("two")
    for epochs in (3, 5):
        options = {"early_stopping": True, "max_iter": epochs, "n_iter_no_change": 20}
        checkpoint = dps.Checkpoint(path, every="1h")
        estimator = made(dps.LinearClassifier, optimizer="sgd", learning_rate=2.0, **options)
        estimator.set_params(checkpoint=checkpoint)
        with dask.config.set({"dps.n_shards": 2}):
            estimator.fit(*data(), resume=True)
    assert len(manifests(path)) == 2
    return path


def damaged(file: Path, whole: bytes, changed: bytes, path: Path) -> None:
    """See that a change is found, and the checkpoint before is taken."""
    file.write_bytes(changed)
    try:
        with pytest.warns(UserWarning, match=r"before, of epoch 3") as said:
            found = files.newest(str(path))
    finally:
        file.write_bytes(whole)
    assert found is not None
    assert len(found.history) == 3
    assert file.parent.name in str(said[0].message)
    if file.name != "manifest.json":
        assert file.name in str(said[0].message)


def test_flipped_bits_and_truncations_are_found_and_the_one_before_is_taken(two: Path) -> None:
    rng = np.random.default_rng(0)
    inside = sorted(manifests(two)[-1].parent.iterdir())
    assert len(inside) >= 4  # of two shards, of the client, and the manifest
    contents = {file: file.read_bytes() for file in inside}
    for number in range(200):
        file = inside[number % len(inside)]
        bad = bytearray(contents[file])
        at = int(rng.integers(len(bad)))
        bad[at] ^= 1 << int(rng.integers(8))
        damaged(file, contents[file], bytes(bad), two)
    for number in range(50):
        file = inside[number % len(inside)]
        damaged(file, contents[file], contents[file][: rng.integers(len(contents[file]))], two)
    found = files.newest(str(two))
    assert found is not None
    assert len(found.history) == 5


def test_a_file_that_is_missing_is_named_and_where_none_is_whole_all_are(
    two: Path, tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(two, tmp_path / "fit")
    first, last = (each.parent for each in manifests(tmp_path / "fit"))
    (last / "part-last-0001-000000.safetensors").unlink()
    with pytest.warns(UserWarning, match=r"has no part-last-0001.*of epoch 3"):
        assert files.newest(str(tmp_path / "fit")) is not None
    next(first.glob("part-last*")).write_bytes(b"")
    with pytest.raises(ValueError, match=rf"(?s)is whole.*{last.name}.*{first.name}"):
        files.newest(str(tmp_path / "fit"))


def test_as_many_as_asked_for_are_kept_and_another_fit_takes_the_place_of_all(
    tmp_path: Path,
) -> None:
    X, y = data()
    for epochs in range(1, 6):
        estimator = made(dps.LinearClassifier, optimizer="adam", max_iter=epochs)
        estimator.set_params(checkpoint=dps.Checkpoint(tmp_path, every="1h", keep=2))
        estimator.fit(X, y, resume=True)
    assert [m.parent.name[:6] for m in manifests(tmp_path)] == ["000004", "000005"]
    made(dps.LinearClassifier, tmp_path, optimizer="adam", max_iter=2).fit(X, y)
    assert {m.parent.name[-12:] for m in manifests(tmp_path)} == {
        manifests(tmp_path)[-1].parent.name[-12:]
    }
    assert len(files.newest(str(tmp_path)).history) == 2  # type: ignore[union-attr]


def test_what_differs_is_named(tmp_path: Path) -> None:
    X, y = data()
    estimator = made(dps.LinearClassifier, f"file://{tmp_path}", optimizer="adam").fit(X, y)
    for given, words in (
        ({"alpha": 0.5, "optimizer": "sgd"}, r"alpha was 'auto', and is 0.5; optimizer was"),
        ({"random_state": 1}, r"the seed was \d+, and is \d+ by random_state=1"),
        ({"mode": "async"}, r"mode was 'sync', and is 'async'"),
    ):
        with pytest.raises(ValueError, match=words):
            made(dps.LinearClassifier, tmp_path, **{"optimizer": "adam"} | given).fit(
                X, y, resume=True
            )
    for rows, labels, words in (
        (X[:-1], y[:-1], "number of rows was 600, and is 599"),
        (X[:, 1:], y, "number of columns was 8, and is 7"),
        (X, y + 1, r"classes was \[0 1\], and is \[1 2\]"),
    ):
        with pytest.raises(ValueError, match=words):
            estimator.fit(rows, labels, resume=True)
    with pytest.raises(ValueError, match=r"the estimator was LinearClassifier, and is MLPC"):
        made(dps.MLPClassifier, tmp_path).fit(X, y, resume=True)
    # A seed that no one gave is that of the checkpoint.
    estimator.set_params(random_state=None, max_iter=9).fit(X, y, resume=True)
    whole = made(dps.LinearClassifier, optimizer="adam", max_iter=9).fit(X, y)
    np.testing.assert_array_equal(estimator.coef_, whole.coef_)


def test_other_values_are_another_fit_and_rounding_is_not(tmp_path: Path) -> None:
    X, y = data()
    weight = np.random.default_rng(1).random(len(y))
    options = {"max_iter": 2, "optimizer": "adam"}
    made(dps.LinearClassifier, tmp_path / "labels", **options).fit(X, y)
    for other, message in (
        ((X, y * 0 + (np.arange(600) % 4 == 0)), "weight of the rows was"),
        ((X * 2, y), "deviation of X was"),
        ((X + 1, y), "mean of X was"),
        ((X, y, weight), "weight of the rows was"),
    ):
        with pytest.raises(ValueError, match=rf"cannot go on from .*{message}"):
            made(dps.LinearClassifier, tmp_path / "labels", **options).fit(*other, resume=True)
    made(dps.LinearRegressor, tmp_path / "numbers", **options).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="deviation of y was"):
        made(dps.LinearRegressor, tmp_path / "numbers", **options).fit(X, X[:, 1], resume=True)
    # The sums of rows in other partitions are others in their last digits.
    parts = da.from_array(X, chunks=(70, 8)), da.from_array(y, chunks=70)
    longer = made(dps.LinearClassifier, tmp_path / "labels", **options | {"max_iter": 4})
    assert longer.fit(*parts, resume=True).n_iter_ == 4


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    X, y = data()
    with pytest.raises(ValueError, match=r"resume=True asks for checkpoint="):
        dps.LinearClassifier().fit(X, y, resume=True)
    with pytest.raises(ValueError, match=r"checkpoint is not possible with partial_fit"):
        made(dps.LinearClassifier, tmp_path).partial_fit(X, y, classes=[0, 1])
    warm = made(dps.LinearClassifier, tmp_path, warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match=r"set warm_start=False, or checkpoint=None"):
        warm.fit(X, y)
    for options, words in (
        ({"every": "soon"}, "such as '60s'"),
        ({"every": -1}, "from 0 on"),
        ({"keep": 0}, "'keep' parameter"),
    ):
        with pytest.raises(ValueError, match=words):
            dps.Checkpoint(tmp_path, **options)
    with pytest.raises(TypeError, match="'path' parameter"):
        dps.Checkpoint(None)


def test_a_fit_that_begins_anew_beside_an_unfinished_one_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = data(rows=20_000)

    def interrupt(self: Any, *args: Any) -> None:
        look(self, *args)
        if self._last[0]:
            raise KeyboardInterrupt

    look = checkpoints.Checkpoints.look
    options = {**SLOW, "max_iter": 2000}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Checkpoints, "look", interrupt)
        with pytest.raises(KeyboardInterrupt):
            made(dps.LinearClassifier, tmp_path, **options).fit(X, y)
    with pytest.warns(UserWarning, match=r"has not come to its end.*resume=True"):
        made(dps.LinearClassifier, tmp_path, **SLOW | {"max_iter": 1}).fit(X, y)


def test_a_path_that_cannot_be_written_is_an_error_before_training_and_a_warning_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = data()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=r"checkpoints cannot be written to .*file"):
        made(dps.LinearClassifier, tmp_path / "file").fit(X, y)
    whole = directories._replace

    def full(beside: str, place: str) -> None:
        if "part-" in place:
            raise OSError(28, "No space left on device")
        whole(beside, place)

    monkeypatch.setattr(directories, "_replace", full)
    with pytest.warns(UserWarning, match="No space left.*Training goes on") as said:
        model = made(dps.LinearClassifier, tmp_path / "fit", **SLOW).fit(X, y)
    assert len(said) == 1
    assert model.n_iter_ == SLOW["max_iter"]
    for thread in threading.enumerate():
        if thread.name == "dps-checkpoint":
            thread.join()
    assert not list((tmp_path / "fit").glob("*"))


def test_an_error_of_any_kind_does_not_fail_a_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(self: Any, *when: int) -> Any:
        raise MemoryError("of a shard")

    monkeypatch.setattr("dps.server.store.snapshots.Snapshots.pieces", no_room)
    with pytest.warns(UserWarning, match=r"MemoryError.*Training goes on"):
        made(dps.LinearClassifier, tmp_path, **SLOW | {"max_iter": 5}).fit(*data())


def test_a_snapshot_that_is_gone_is_no_error_and_a_newer_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, asked = snapshots.Snapshots.pieces, []

    def late(self: Any, epochs: int, steps: int = 0) -> Any:
        asked.append(epochs)
        for piece in pieces(self, epochs, steps):
            yield piece
            if len(asked) == 1:  # it is written over while it is written
                self._header.store(S_SNAPSHOT_0, 0)
                self._header.store(S_SNAPSHOT_1, 0)

    monkeypatch.setattr(snapshots.Snapshots, "pieces", late)
    model = made(dps.LinearClassifier, tmp_path, **SLOW | {"max_iter": 20})
    model.fit(*data(rows=20_000))
    assert len(asked) > 1
    found = files.newest(str(tmp_path))
    assert found is not None
    assert len(found.history) == 20
    np.testing.assert_array_equal(found.last.values[0], carry_of(model).params)


def test_on_a_cluster_shards_write_and_another_number_of_workers_goes_on(
    client: Any, tmp_path: Path
) -> None:
    import dask.array as da

    X, y = data()
    chunks = da.from_array(X, (200, 8)), da.from_array(y, 200)
    options = {"optimizer": "adam", "n_shards": 2, "batch_size": 64, "client": client}
    whole = made(dps.LinearClassifier, **options).fit(*chunks)
    with pytest.raises(OSError, match="give a path that all workers share"):
        made(dps.LinearClassifier, "memory://no-other", **options).fit(*chunks)
    made(dps.LinearClassifier, tmp_path, **options | {"max_iter": 4}).fit(*chunks)
    names = {file.name for file in manifests(tmp_path)[-1].parent.iterdir()}
    assert {f"part-last-{shard:04d}-000000.safetensors" for shard in (0, 1)} <= names
    parts = made(dps.LinearClassifier, tmp_path, **options).fit(*chunks, resume=True)
    np.testing.assert_array_equal(whole.coef_, parts.coef_)
    # And in this process alone.
    parts.set_params(max_iter=9, n_replicas=1, client=None)
    assert len(parts.fit(X, y, resume=True).history_) == 9


def test_a_large_table_is_written_from_where_it_lies_and_read_again(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_LARGE", 1e-9)
    X, y = data(sparse=True)
    options = {"max_embeddings": 4000, "learning_rate": "constant", "client": client}
    whole = made(dps.FMClassifier, **options).fit(X, y)
    made(dps.FMClassifier, tmp_path, **options | {"max_iter": 4}).fit(X, y)
    parts = made(dps.FMClassifier, tmp_path, **options).fit(X, y, resume=True)
    np.testing.assert_array_equal(carry_of(whole).params, carry_of(parts).params)


def test_columns_of_a_dataframe_are_learned_again_and_must_be_the_same(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    X, y = data()
    frame = pd.DataFrame({"a": X[:, 0], "b": np.array(["x", "y", "z"])[np.arange(600) % 3]})
    options = {"optimizer": "adam", "batch_size": 64}
    whole = made(dps.LinearClassifier, **options).fit(frame, y)
    made(dps.LinearClassifier, tmp_path, **options | {"max_iter": 4}).fit(frame, y)
    parts = made(dps.LinearClassifier, tmp_path, **options).fit(frame, y, resume=True)
    np.testing.assert_array_equal(whole.coef_, parts.coef_)
    other = frame.assign(b=frame["b"].str.upper())
    with pytest.raises(ValueError, match=r"encoder was one of the columns .*b_x.*and is .*b_X"):
        made(dps.LinearClassifier, tmp_path, **options).fit(other, y, resume=True)


if __name__ == "__main__":
    if sys.argv[2] == "crash":
        crash(Path(sys.argv[1]), sys.argv[3])
    else:
        watch._CHECK_EVERY = 0.0
        watch._TICK = 0.001
        child(Path(sys.argv[1]), sys.argv[2])
