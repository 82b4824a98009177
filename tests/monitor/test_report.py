"""Reports of a fit: text, advice, progress."""

from __future__ import annotations

import logging
import pickle
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import sklearn
from distributed import Client, get_worker
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import dps
from dps.losses import LogLoss
from dps.monitor.advice import Account, advise
from dps.training.report import FitReport, Shards


def account(rank: int = 0, **parts: Any) -> Account:
    given = {
        "worker": f"tcp://10.0.0.1:{rank}", "rows": 100, "load": 0.0, "compute": 1.0,
        "communicate": 0.0, "wait": 0.0,
    }  # fmt: skip
    return Account(rank, **{**given, **parts})


def advice(*accounts: Account, together: bool = True, **how: Any) -> str:
    said = advise(accounts, together=together, **{"full_batch": False, **how})
    return " ".join(said)


WAITING = [account(rank, compute=0.38, wait=0.62) for rank in range(2)]


def test_waiting_in_sync_asks_for_async_fewer_replicas_or_larger_batches() -> None:
    assert advice(*WAITING) == (
        "62% of the time is waiting: use mode='async', fewer replicas or a larger batch_size."
    )


def test_who_trains_on_all_rows_at_once_is_not_told_of_batches() -> None:
    said = advice(*WAITING, full_batch=True)
    assert "fewer replicas" in said
    assert "batch_size" not in said
    assert "async" not in said


def test_waiting_in_async_is_for_the_end_of_epochs() -> None:
    assert "ends of epochs" in advice(*WAITING, together=False)


def test_a_replica_with_more_rows_is_named_with_the_remedy() -> None:
    others = [account(rank, compute=1.0, wait=3.0) for rank in range(3)]
    said = advice(*others, account(3, compute=4.0, rows=400))
    assert "for replica 3 on 10.0.0.1:3, which has 4.0 times the rows" in said
    assert "set dps.rebalance of dask.config to True" in said


def test_a_slow_machine_is_named_where_rows_are_even() -> None:
    others = [account(rank, compute=1.0, wait=3.0) for rank in range(3)]
    said = advice(*others, account(3, compute=4.0))
    assert "replica 3 on 10.0.0.1:3, which computes 4.00 s where the others take 1.00 s" in said
    assert said.endswith("or use mode=dps.Sync(backups=1) or mode='async'.")


def test_the_slower_one_of_two_is_named_though_its_own_time_is_not_waiting() -> None:
    said = advice(account(0, compute=1.0, wait=2.0), account(1, compute=3.0))
    assert said.startswith("33% of the time is waiting for replica 1 on 10.0.0.1:1")


def test_communication_asks_for_larger_batches_and_for_one_host_where_there_are_several() -> None:
    near = [account(rank, communicate=2.0) for rank in range(2)]
    assert advice(*near) == (
        "67% of the time is moving parameters and gradients: "
        "use a larger batch_size, fewer replicas."
    )
    far = [near[0], account(1, communicate=2.0, worker="tcp://10.0.0.2:1")]
    assert "share memory" in advice(*far)
    assert "mode=dps.AllReduce(period=16)" in advice(*far)


def test_loading_asks_for_data_in_the_form_it_is_trained_on() -> None:
    assert "persist the data" in advice(account(load=2.0))


@pytest.mark.parametrize("together", [False, True])
def test_old_gradients_are_told_of_where_replicas_do_not_wait(together: bool) -> None:
    said = advice(account(0), account(1), together=together, staleness=9.0)
    assert ("Gradients are 9.0 updates old" in said) is not together
    assert ("mode=dps.Async(max_delay=1)" in said) is not together


@pytest.mark.parametrize(("max_delay", "next_one"), [(0, 4), (2, 8)])
def test_waiting_within_a_bound_asks_for_a_wider_one(max_delay: int, next_one: int) -> None:
    said = advice(*WAITING, together=False, max_delay=max_delay)
    assert f"max_delay={next_one}" in said


def test_rows_that_are_dropped_are_told_of_unless_a_replica_is_slow() -> None:
    busy = account(0), account(1)
    assert "dropped" not in advice(*busy, dropped=0.01)
    assert advice(*busy, dropped=0.4).startswith("40% of the rows were dropped")
    assert "dropped" not in advice(*busy, account(2), account(3, rows=25), dropped=0.25)


def test_a_fit_that_computes_needs_workers_and_no_settings() -> None:
    assert advice(account(0, wait=0.1)) == (
        "91% of the time is computing: more workers would make it faster, settings would not."
    )


def test_where_nothing_stands_out_nothing_is_said() -> None:
    assert advice(account(0, communicate=0.3, wait=0.3, load=0.3)) == ""


def test_a_fit_over_at_once_or_never_counted_gets_no_advice() -> None:
    assert advice(account(compute=0.01, wait=0.02)) == ""
    assert advice(account(compute=0.0)) == ""
    assert advice() == ""


ACCOUNTS = (
    Account(0, "tcp://10.0.0.1:40", 1200, 0.0, 1.0, 0.5, 2.5),
    Account(1, "tcp://10.0.0.2:41", 1200, 0.0, 1.0, 0.5, 2.5),
)
REPORT = FitReport(
    name="LinearClassifier", mode="sync", method="Adagrad",
    outcome="converged", epochs=12, loss=0.4654, validation_loss=None, rows=200, seconds=4.0,
    staleness=None, shards=Shards(1), accounts=ACCOUNTS,
)  # fmt: skip


def test_the_text_says_how_it_ended_where_time_went_and_what_to_change() -> None:
    assert str(REPORT) == (
        "LinearClassifier, sync by Adagrad: converged after 12 epochs and 4.00 s, loss 0.4654\n"
        "200 rows an epoch, 600 rows/s, 2 replicas, 1 shard\n"
        "\n"
        "replica  worker        rows    time  compute  communicate  wait  load\n"
        "      0  10.0.0.1:40  1.20k  4.00 s      25%          12%   62%    0%\n"
        "      1  10.0.0.2:41  1.20k  4.00 s      25%          12%   62%    0%\n"
        "    all               2.40k  8.00 s      25%          12%   62%    0%\n"
        "\n"
        "62% of the time is waiting: use mode='async', fewer replicas or a larger batch_size."
    )


def test_of_many_replicas_those_that_compute_longest_are_listed() -> None:
    many = tuple(replace(ACCOUNTS[0], rank=rank, compute=1.0 + rank) for rank in range(40))
    report = replace(REPORT, accounts=many)
    lines = str(report).splitlines()
    assert [line.split()[0] for line in lines[4:20]] == [str(rank) for rank in range(24, 40)]
    assert "24 that compute less" in lines[20]
    assert "and 24 replicas that compute less" in report._repr_html_()


class Balanced(HTMLParser):
    """Fails on HTML whose tags do not close each other."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("br", "meta", "link", "img", "input"):
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_html_has_a_bar_a_replica_and_no_open_tag() -> None:
    html = replace(REPORT, name="<Odd>")._repr_html_()
    parser = Balanced()
    parser.feed(html)
    assert not parser.opened
    assert "<Odd>, sync by Adagrad" in parser.text
    assert "10.0.0.2:41" in parser.text
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", html)]
    assert sum(widths) == pytest.approx(200.0)
    assert "use mode='async'" in parser.text


def test_without_an_account_of_time_there_is_neither_table_nor_bar() -> None:
    empty = replace(ACCOUNTS[0], compute=0.0, communicate=0.0, wait=0.0)
    report = replace(REPORT, accounts=(empty,), validation_loss=0.5)
    assert str(report) == (
        "LinearClassifier, sync by Adagrad: converged after 12 epochs and 4.00 s, loss 0.4654, "
        "0.5 on held-out rows\n200 rows an epoch, 600 rows/s, 1 replica, 1 shard"
    )
    assert "■" not in report._repr_html_()


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
def test_a_fit_on_a_cluster_accounts_for_the_time_of_each_replica(
    mode: str, client: Client
) -> None:
    X = da.random.default_rng(0).normal(size=(20_000, 20), chunks=(5_000, -1))
    y = (X[:, 0] > 0).astype(int)
    model = dps.LinearClassifier(
        mode=mode, optimizer="adagrad", max_iter=5, tol=None, n_replicas=2, client=client
    ).fit(X, y)
    report = model.fit_report_
    assert (report.mode, report.outcome, report.epochs) == (mode, "ended by max_iter", 5)
    assert [account.rank for account in report.accounts] == [0, 1]
    for account, rank in zip(report.accounts, model.plan_.ranks, strict=True):
        assert account.worker == rank.worker
        assert account.rows == 5 * rank.rows
        assert account.compute > 0
    assert pickle.loads(pickle.dumps(model)).fit_report_ == report


def uneven(worker: str) -> LogLoss:
    """A loss that takes four times as long on one worker; made here, so that it is pickled."""

    @dataclass(frozen=True)
    class Uneven(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            time.sleep(0.04 if get_worker().address == worker else 0.01)
            return LogLoss.evaluate(self, y, raw, weight, out)

    return Uneven()


def test_a_replica_slowed_down_four_times_is_named_in_the_report(client: Client) -> None:
    slow = max(client.nthreads())
    X = da.random.default_rng(0).normal(size=(4_000, 5), chunks=(1_000, -1))
    report = (
        dps.LinearClassifier(
            loss=uneven(slow), optimizer="sgd", max_iter=3, tol=None, batch_size=400,
            n_replicas=2, client=client,
        )
        .fit(X, (X[:, 0] > 0).astype(int))
        .fit_report_
    )  # fmt: skip
    (rank,) = [account.rank for account in report.accounts if account.worker == slow]
    assert f"waiting for replica {rank} on {slow.removeprefix('tcp://')}" in str(report)


def test_the_repr_in_notebooks_includes_the_report() -> None:
    X = np.random.default_rng(0).normal(size=(100, 3))
    model = dps.LinearClassifier()
    with sklearn.config_context(display="diagram"):
        assert "rows an epoch" not in model._repr_html_()
        model.fit(X, (X[:, 0] > 0).astype(int))
        for html in (model._repr_html_(), model._repr_mimebundle_()["text/html"]):
            assert model.fit_report_._repr_html_() in html
            assert "converged after" in html
    with sklearn.config_context(display="text"):
        assert "text/html" not in model._repr_mimebundle_()


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
    monkeypatch.setattr("dps.data.keep.computing._REPORT_SECONDS", 0.0)
    classifier(verbose=1).fit(da.from_array(X, chunks=(100, 5)), da.from_array(Y, chunks=100))
    printed = [part.strip() for part in capsys.readouterr().err.split("\r")]
    loading = [part for part in printed if part.startswith("loading, ")]
    assert loading[-1].startswith("loading, 4 of 4 partitions |")
    assert printed[-1].startswith("epoch 5/5 |")


def test_the_bar_counts_fits_that_are_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dps.estimators.fit.loading._QUIET", 0.0)
    classifier(verbose=1, alpha="cv").fit(X, Y)
    printed = [part.strip() for part in capsys.readouterr().err.split("\r")]
    assert [part for part in printed if part.startswith("comparing fits to a sample, 2 |")]
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
