"""The page as its reader has it: opened in headless Chromium while a model is trained."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import pytest
from browser import CHROMIUM, Browser
from distributed import Client, get_worker

import dps
from dps.losses import LogLoss
from dps.monitor.dashboard import show_fits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

X = da.random.default_rng(0).normal(size=(20_000, 20), chunks=(5_000, -1))
Y = (X[:, 0] + da.random.default_rng(1).normal(size=20_000, chunks=5_000) > 0).astype(int)

#: The last epoch of the curve of training loss of the fit in focus.
LAST_EPOCH = """
(() => {
  const [figure] = Bokeh.documents[0].get_model_by_name("loss").children
  const curves = figure.renderers?.[1].data_source.data.x
  return curves?.length ? curves.at(-1).at(-1) : 0
})()
"""
HEADLINE = "Bokeh.documents[0].get_model_by_name('headline').text"
READY = "typeof Bokeh != 'undefined' && Bokeh.documents.length > 0 && Bokeh.documents[0].is_idle"


class Enough(Exception):
    """Ends a fit that has been seen."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@contextlib.contextmanager
def endless_fit(
    client: Client, monkeypatch: pytest.MonkeyPatch, **parameters: Any
) -> Iterator[None]:
    """A fit that goes on until the block ends."""
    seen = threading.Event()

    def tell(records: Any) -> None:
        if seen.is_set():
            raise Enough

    monkeypatch.setattr(
        "dps.estimators.fit.callbacks.showing", lambda *_: contextlib.nullcontext(tell)
    )
    model = dps.LinearClassifier(
        client=client, optimizer="adagrad", max_iter=10**6, tol=None, verbose=1, **parameters
    )
    ended: list[BaseException] = []

    def run() -> None:
        try:
            model.fit(X, Y)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        seen.set()
        thread.join()
    assert [type(error) for error in ended] == [Enough]


def page(client: Client, path: str = "dps") -> str:
    show_fits(client, 10.0)  # as the fit does, which may not have come to it yet
    return f"http://127.0.0.1:{client.scheduler_info()['services']['dashboard']}/{path}"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_curves_move_during_a_fit_and_the_console_is_silent(
    mode: str, client: Client, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.complaints.clear()
    with endless_fit(client, monkeypatch, mode=mode, n_replicas=2, early_stopping=True):
        browser.open(page(client))
        browser.wait(READY, "bokeh has drawn the page")
        first = browser.wait(LAST_EPOCH, "the curve has a point")
        browser.wait(f"{LAST_EPOCH} > {first}", "the curve moves")
        browser.wait(f"{HEADLINE}.includes('>running<')", "the fit runs")
        browser.wait(f"{HEADLINE}.includes('rows/s')", "its speed is shown")
        tell = {"sync": "no gradient is ever stale", "async": "by staleness"}[mode]
        shown = "JSON.stringify(Bokeh.documents[0].get_model_by_name('staleness').children[0]"
        words = f"{shown}.text ?? 'by staleness')"
        browser.wait(f"{words}.includes({tell!r})", "staleness is shown, or why there is none")
    browser.wait(f"{HEADLINE}.includes('>failed<')", "the end is shown")
    browser.wait(f"{HEADLINE}.includes('Enough')", "and why it came")
    assert browser.complaints == []


def uneven(worker: str) -> LogLoss:
    """A loss that takes four times as long on one worker; made here, so that it is pickled."""

    @dataclass(frozen=True)
    class Uneven(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            time.sleep(0.04 if get_worker().address == worker else 0.01)
            return LogLoss.evaluate(self, y, raw, weight, out)

    return Uneven()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_replica_slowed_down_four_times_is_named(
    mode: str, client: Client, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = max(client.nthreads())
    browser.complaints.clear()
    with endless_fit(
        client, monkeypatch, mode=mode, n_replicas=2, loss=uneven(slow), batch_size=1_000
    ):
        browser.open(page(client))
        browser.wait(READY, "bokeh has drawn the page")
        named = browser.wait(
            f"{HEADLINE}.match(/Replica (\\d)<.b> on ([\\d.:]+) is slow/)", "the slow one is named"
        )
        assert named[2] == slow.removeprefix("tcp://")
        labels = "Bokeh.documents[0].get_model_by_name('times').children[0].left[0]"
        marked = f"{labels}.major_label_overrides"
        values = f"({marked} instanceof Map ? [...{marked}.values()] : Object.values({marked}))"
        browser.wait(f"{values}.some(it => it.startsWith('⚠ {named[1]}'))", "its bar is marked")
    assert browser.complaints == []


def test_fits_are_compared_when_they_are_chosen(client: Client, browser: Browser) -> None:
    browser.complaints.clear()
    for _ in range(2):
        dps.LinearClassifier(
            client=client, optimizer="adagrad", max_iter=4, tol=None, n_replicas=2
        ).fit(X, Y)
    browser.open(page(client), dark=True)
    browser.wait(READY, "bokeh has drawn the page")
    assert browser.value("location.search") == "?theme=dark"
    choice = "Bokeh.documents[0].get_model_by_name('choice')"
    names = browser.wait(f"{choice}.labels", "fits can be chosen")
    assert len(names) >= 2
    assert f">{names[-1]}<" in browser.value(HEADLINE)
    # A click, as bokeh's own view of the button would make it.
    browser.value(f"{choice}.active = [{len(names) - 2}], 1")
    browser.wait(f"{HEADLINE}.includes('>{names[-2]}<')", "the chosen fit is shown")
    # What is chosen stands in the address, and goes along to the other look and to single plots.
    searched = "new URLSearchParams(location.search)"
    (fit,) = browser.wait(f"{searched}.getAll('fit')", "the address says what is chosen")
    browser.value("document.querySelector('#choice > a').click()")
    browser.wait(f"{searched}.get('theme') == 'light' && {READY}", "the other look is there")
    assert f">{names[-2]}<" in browser.value(HEADLINE)
    browser.value("document.querySelector('section.loss h2 a').click()")
    browser.wait(f"location.pathname == '/individual-dps-loss' && {READY}", "the plot is there")
    assert browser.value(f"{searched}.getAll('fit')") == [fit]
    figures = "Bokeh.documents[0].get_model_by_name('loss').children"
    assert browser.value(f"{figures}[0].renderers[1].data_source.data.x.length") == 1
    assert browser.complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("path", ["", "individual-dps-loss", "individual-dps-time"])
def test_pages_of_single_plots_open_without_a_complaint(
    path: str, dark: bool, client: Client, browser: Browser
) -> None:
    browser.complaints.clear()
    dps.LinearClassifier(client=client, optimizer="adagrad", max_iter=2, tol=None).fit(X, Y)
    browser.open(page(client, path or "dps"), dark=dark, width=700, height=500)
    browser.wait(READY, "bokeh has drawn the plot")
    background = browser.value("getComputedStyle(document.body).backgroundColor")
    assert np.mean([int(part) for part in background[4:-1].split(",")]) > 128 or dark
    assert browser.complaints == []
