"""What the report of a fit says, as text and in notebooks."""

from __future__ import annotations

import pickle
import re
import time
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn
from distributed import Client, get_worker

import dps
from dps.losses import LogLoss
from dps.monitor.advice import Account
from dps.training.report import FitReport, Shards

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
