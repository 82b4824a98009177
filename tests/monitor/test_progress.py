"""What is seen of a fit while it runs, and of its epochs afterwards."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from distributed import Client
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import dps

X = np.random.default_rng(0).normal(size=(400, 5))
Y = (X @ [1.0, -1.0, 0.5, 0.0, 0.0] > 0).astype(int)


def classifier(**parameters: Any) -> dps.LinearClassifier:
    settings = {"optimizer": "adagrad", "tol": None, "max_iter": 5, "random_state": 0}
    return dps.LinearClassifier(**{**settings, **parameters})


def test_the_bar_counts_epochs_and_shows_the_last_ones_loss(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = classifier(verbose=1).fit(X, Y)
    printed = capsys.readouterr()
    last = printed.err.rstrip().split("\r")[-1]
    assert last.startswith("epoch 5/5 |")
    assert f"loss {model.loss_:.6g}, " in last
    assert last.endswith(" rows/s")
    assert not printed.out


def test_a_bar_ends_full_where_the_stopping_rule_ended_the_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = classifier(verbose=1, max_iter=1000, tol=1e-2, early_stopping=True).fit(X, Y)
    assert model.n_iter_ < 1000
    last = capsys.readouterr().err.rstrip().split("\r")[-1]
    assert last.startswith(f"epoch {model.n_iter_}/{model.n_iter_} |")
    assert f"validation {model.history_[-1]['validation_loss']:.6g}" in last


def test_a_failed_fit_leaves_no_bar_behind() -> None:
    from tqdm import tqdm

    with pytest.raises(dps.errors.DPSError):
        classifier(
            verbose=1, learning_rate=1e300, optimizer="sgd", standardize=False
        ).fit(X * 1e10, Y)  # fmt: skip
    assert not tqdm._instances


def test_while_data_is_loaded_the_bar_counts_partitions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dps.data.keep.computing._EVERY", 0.0)
    classifier(verbose=1).fit(da.from_array(X, chunks=(100, 5)), da.from_array(Y, chunks=100))
    printed = [part.strip() for part in capsys.readouterr().err.split("\r")]
    loading = [part for part in printed if part.startswith("loading, ")]
    assert loading[-1].startswith("loading, 4 of 4 partitions |")
    assert printed[-1].startswith("epoch 5/5 |")


class Lines(logging.Handler):
    """The lines of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_verbose_2_is_a_line_an_epoch_in_the_programs_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log, handler = logging.getLogger("dps"), Lines()
    log.addHandler(handler)
    try:
        model = classifier(verbose=2).fit(X, Y)
    finally:
        log.removeHandler(handler)
    assert [line.partition(":")[0] for line in handler.lines] == [f"epoch {n}" for n in range(1, 6)]
    assert f"loss {model.loss_:.6g}" in handler.lines[-1]
    printed = capsys.readouterr()
    assert not printed.out
    assert not printed.err


@pytest.mark.parametrize("deaf", [False, True])
def test_without_a_handler_that_hears_verbose_2_shows_the_log_on_stderr_for_that_fit_alone(
    deaf: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("dps")
    monkeypatch.setattr(log, "propagate", False)  # pytest's own handlers are the root's
    handler = Lines()
    handler.setLevel(logging.WARNING)
    monkeypatch.setattr(log, "handlers", [handler] if deaf else [])
    classifier(verbose=2).fit(X, Y)
    assert len(capsys.readouterr().err.splitlines()) == 5
    classifier().fit(X, Y)
    assert not capsys.readouterr().err
    assert (log.level, log.handlers) == (logging.NOTSET, [handler] if deaf else [])


def test_two_fits_share_the_log_until_the_last_one_ends() -> None:
    from dps.estimators.fit.progress import showing

    log = logging.getLogger("dps")
    first, second = showing(2, 10), showing(2, 10)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert log.isEnabledFor(logging.INFO)
    second.__exit__(None, None, None)
    assert not log.isEnabledFor(logging.INFO)


def test_history_is_a_list_of_dicts_that_makes_a_frame() -> None:
    model = classifier(early_stopping=True).fit(X, Y)
    assert isinstance(model.history_, list)
    assert all(type(record) is dict for record in model.history_)
    frame = model.history_.to_frame()
    assert list(frame.index) == [1, 2, 3, 4, 5]
    assert frame["loss"].iloc[-1] == model.loss_
    assert frame["validation_loss"].notna().all()
    assert pickle.loads(pickle.dumps(model)).history_ == model.history_


@pytest.mark.parametrize("validated", [True, False])
def test_history_plots_loss_and_throughput(validated: bool) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("agg")
    history = classifier(early_stopping=validated).fit(X, Y).history_
    losses, rates = history.plot()
    curves = {line.get_label(): line.get_ydata() for line in losses.lines}
    assert set(curves) == ({"training", "validation"} if validated else {"training"})
    assert list(curves["training"]) == [record["loss"] for record in history]
    assert list(rates.lines[0].get_ydata()) == [record["rows_per_second"] for record in history]
    _, own = pyplot.subplots(1, 2)
    assert list(history.plot(own)) == list(own)
    pyplot.close("all")


def test_the_warning_of_max_iter_points_at_the_callers_line() -> None:
    with pytest.warns(ConvergenceWarning) as said:
        classifier(max_iter=1, tol=1e-9).fit(X, Y)
    assert said[0].filename == __file__


def test_estimators_work_where_scikit_learn_has_no_callbacks() -> None:
    program = """
import sys
sys.modules["sklearn.callback"] = None  # as before 1.9
import warnings
warnings.simplefilter("error")
import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
import dps
X = np.random.default_rng(0).normal(size=(100, 3))
y = (X[:, 0] > 0).astype(int)
model = clone(dps.LinearClassifier(max_iter=2, optimizer="adagrad"))
assert not hasattr(model, "set_callbacks")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    model.set_params(tol=1e-9).fit(X, y)
assert [(w.category, w.filename) for w in said] == [(ConvergenceWarning, "<string>")], said
print(model.n_iter_)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("2\n", "")


callback = pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 has callbacks")


class Recorder:
    """A callback that keeps what it is told, and asks to stop after some epochs."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.told: list[str] = []
        self.models: list[Any] = []
        self.stop_after = stop_after

    def setup(self, estimator: Any, context: Any) -> None:
        self.told.append("setup")

    def teardown(self, estimator: Any, context: Any) -> None:
        self.told.append("teardown")

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.told.append(f"begin {context.task_name}")

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, X: Any, y: Any, fitted_estimator: Any
    ) -> bool:
        self.told.append(f"end {context.task_name}")
        if fitted_estimator is not None:
            self.models.append((context.task_name, context.task_id, fitted_estimator.score(X, y)))
        return context.task_name == "epoch" and context.task_id + 1 >= self.stop_after


class Saver(Recorder):
    """Saves what it is given after each epoch, and remembers what that predicts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.saved: list[tuple[Any, Any]] = []

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, X: Any, y: Any, fitted_estimator: Any
    ) -> bool:
        if context.task_name == "epoch" and fitted_estimator is not None:
            path = self.path / str(context.task_id)
            fitted_estimator.save(path)
            self.saved.append((path, fitted_estimator.predict(X)))
        return False


@pytest.mark.parametrize(
    "model",
    [
        dps.LinearClassifier(optimizer="adagrad", max_iter=3, tol=None),
        dps.MLPRegressor(hidden_layer_sizes=(4,), max_iter=3, tol=None),
        dps.FMClassifier(2, max_iter=3, tol=None, max_embeddings=100),
    ],
    ids=lambda model: type(model).__name__,
)
def test_what_a_callback_is_given_after_an_epoch_can_be_saved_and_goes_on(
    model: Any, tmp_path: Path
) -> None:
    saver = Saver(tmp_path)
    rows = scipy.sparse.csr_matrix(X) if hasattr(model, "max_embeddings") else X
    clone(model).set_callbacks(saver).fit(rows, Y)
    assert saver.saved
    for path, predicted in saver.saved:
        loaded = dps.load(path)
        np.testing.assert_array_equal(loaded.predict(rows), predicted)
        assert loaded.n_iter_ == len(loaded.history_) >= 1
        assert np.isfinite([loaded.best_loss_, loaded.loss_]).all()
        loaded.partial_fit(rows, Y)


@pytest.mark.parametrize("place", ["cluster", "threads"])
def test_callbacks_are_told_of_every_epoch_and_of_the_end(place: str, client: Client) -> None:
    data: tuple[Any, Any] = X, Y
    if place == "cluster":
        data = da.from_array(X, chunks=(100, -1)), da.from_array(Y, chunks=100)
    recorder = Recorder()
    model = classifier(client=client if place == "cluster" else None)
    model.set_callbacks(recorder).fit(*data)
    epochs = ["begin epoch", "end epoch"] * 5
    assert recorder.told == ["setup", "begin fit", *epochs, "end fit", "teardown"]
    # The last epoch's model is that which is kept.
    score = model.score(*data)
    assert recorder.models[-2:] == [("epoch", 4, score), ("fit", 0, score)]


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
def test_a_callback_ends_the_fit(mode: str, client: Client) -> None:
    model = classifier(mode=mode, max_iter=10**6, client=client, n_replicas=2)
    recorder = Recorder(stop_after=3)
    model.set_callbacks(recorder).fit(X, Y)
    assert 3 <= model.n_iter_ == len(model.history_) < 10**6
    assert recorder.told[-2:] == ["end fit", "teardown"]
    assert model.score(X, Y) > 0.9
    assert model.fit_report_.outcome == "stopped by a callback"
    ends = [event for _, event in client.get_events("dps") if event["kind"] == "stopped"]
    assert (ends[-1]["reason"], ends[-1]["epochs"]) == ("interrupted", model.n_iter_)


def test_callbacks_are_torn_down_when_a_fit_fails() -> None:
    recorder = Recorder()
    with pytest.raises(ValueError, match="infinity"):
        classifier().set_callbacks(recorder).fit(np.full_like(X, np.inf), Y)
    assert recorder.told == ["setup", "begin fit", "teardown"]


def test_the_progress_bar_of_scikit_learn_ends_with_the_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("rich", reason="the ProgressBar draws with rich")
    classifier().set_callbacks(callback.ProgressBar()).fit(X, Y)
    assert "LinearClassifier - fit" in capsys.readouterr().out
    assert not [t for t in threading.enumerate() if "Rich" in type(t).__name__]


def test_the_scoring_monitor_of_scikit_learn_scores_on_a_cluster(client: Client) -> None:
    monitor = callback.ScoringMonitor(scoring="accuracy")
    data = da.from_array(X, chunks=(100, -1)), da.from_array(Y, chunks=100)
    model = classifier(client=client).set_callbacks(monitor).fit(*data)
    log = monitor.get_logs().data
    assert log[-1]["task_id_path"] == (0, 4)
    assert log[-1]["accuracy"] == model.score(*data)


def test_callbacks_reach_estimators_inside_a_search() -> None:
    from sklearn.model_selection import GridSearchCV

    recorder = Recorder()
    model = classifier(max_iter=2).set_callbacks(recorder)
    assert clone(model)._skl_callbacks == [recorder]
    GridSearchCV(model, {"alpha": [0.1, 1.0]}, cv=2, refit=False).fit(X, Y)
    assert recorder.told.count("end epoch") == 2 * 2 * 2


def test_weights_and_frames_reach_the_callbacks() -> None:
    import pandas as pd

    frame = pd.DataFrame(X).assign(kind=np.where(Y > 0, "a", "b")).rename(columns=str)
    monitor = callback.ScoringMonitor(scoring="accuracy")
    model = classifier().set_callbacks(monitor)
    model.fit(frame, Y, sample_weight=np.linspace(1, 2, len(Y)))
    assert monitor.get_logs().data[-1]["accuracy"] == model.score(
        frame, Y, np.linspace(1, 2, len(Y))
    )
