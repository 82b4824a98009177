"""The page's memory of fits, from events in any order."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bokeh.document import Document
from bokeh.models import Div, GlyphRenderer, Plot

from dps.monitor.events import event
from dps.monitor.page.bars import Times
from dps.monitor.page.curves import Losses, Rates
from dps.monitor.page.document import PANELS
from dps.monitor.page.palette import LIGHT
from dps.monitor.page.panels import Headline
from dps.monitor.page.view import view_of
from dps.monitor.scheduler.prometheus import FitCollector
from dps.monitor.scheduler.series import Series
from dps.monitor.scheduler.store import FITS, POINTS, SENTENCES, SILENCE, Fit, FitStore
from dps.monitor.words import sentence


def started(fit: str, **fields: Any) -> dict[str, Any]:
    replicas = [{"rank": r, "worker": f"tcp://h:{r}", "rows": 50, "steps": 5} for r in range(2)]
    shards = [{"shard": 0, "worker": "tcp://h:0", "parameters": 6, "unshared": "no room"}]
    given = {
        "name": "LinearClassifier", "mode": "sync", "together": True, "max_delay": None,
        "optimizer": "adagrad", "loss": "log_loss",
        "dtype": "float64", "parameters": 6, "rows": 100, "batch_rows": 20, "updates": 5,
        "max_epochs": 10, "epochs_before": 0, "replicas": replicas, "shards": shards,
    }  # fmt: skip
    return event("started", fit, **{**given, **fields})


def replicas(fit: str, seconds: float = 1.0, epoch: int = 1, **fields: Any) -> dict[str, Any]:
    given = {
        "epoch": epoch, "step": 3, "rows": 30, "epoch_rows": 30, "rows_per_second": 40.0,
        "loss": 0.7, "load": 0.0, "compute": 0.5, "pull": 0.0, "push": 0.1, "wait": 0.4,
        "staleness_max": 0.0, **fields,
    }  # fmt: skip
    ranks = {name: [value] * 2 for name, value in given.items()}
    ranks |= {name: ranks.get(name, []) for name in ("staleness_mean", "lead_max")}
    return event("replicas", fit, seconds=seconds, final=False, replicas=ranks)


def epochs(fit: str, *numbers: int, validation: float | None = None) -> dict[str, Any]:
    closed = [
        {
            "epoch": number, "kept": number, "loss": 1 / number,
            "validation_loss": validation, "rows": 100, "seconds": 2.0,
            "staleness_mean": 0.0, "staleness_max": 0.0, "clock_distance_max": None,
            "rows_dropped": 0, "rows_late": 0,
        }
        for number in numbers
    ]  # fmt: skip
    return event("epochs", fit, epochs=closed, skipped=0)


def stopped(fit: str, **fields: Any) -> dict[str, Any]:
    given = {"reason": "converged", "epochs": 3, "loss": 0.25, "seconds": 6.0}
    return event("stopped", fit, **{**given, **fields})


def straggler(fit: str, slow: bool) -> dict[str, Any]:
    return event(
        "straggler", fit, rank=1, replica_worker="tcp://h:1", slow=slow, ratio=0.25,
        why="it computes 4 times as slowly as the others",
    )  # fmt: skip


def fed(*events: dict[str, Any], now: float = 100.0) -> Fit:
    store = FitStore()
    for one in events:
        store.add(one, now)
    (fit,) = store.fits
    return fit


def test_a_fit_is_put_together_from_events_in_any_order() -> None:
    said = [started("f"), replicas("f"), epochs("f", 1), stopped("f")]
    for order in (said, said[::-1], said[2:] + said[:2]):
        fit = fed(*order)
        assert fit.name == "LinearClassifier 1"
        assert (fit.outcome, fit.epochs, fit.loss, fit.seconds(500.0)) == ("converged", 3, 1.0, 6.0)
        assert sorted(fit.replicas) == [0, 1]


def test_an_end_that_arrives_twice_counts_once() -> None:
    store = FitStore()
    for end in (stopped("f"), stopped("f"), stopped("g", reason="max_iter")):
        store.add(end, 100.0)
    assert store.outcomes == {"converged": 1, "max_iter": 1}


def test_progress_counts_the_rows_of_the_open_epoch() -> None:
    fit = fed(started("f"), epochs("f", 1, 2), replicas("f", epoch=3))
    assert (fit.epochs, fit.epoch_done, fit.rows_per_second) == (2, 0.6, 80.0)
    assert fit.remaining == pytest.approx(2.0 * (10 - 2.6))
    assert fit.loss_now == (2.6, pytest.approx(0.7))
    late = fed(started("f"), epochs("f", 1, 2), replicas("f", epoch=2))
    assert (late.epoch_done, late.loss_now) == (0.0, None)  # what is said of a closed epoch


def test_curves_have_validation_where_rows_are_held_out() -> None:
    assert fed(epochs("f", 1, 2, validation=0.9)).losses.columns()[2] == [0.9, 0.9]
    fit = fed(epochs("f", 1, 2))
    assert all(map(math.isnan, fit.losses.columns()[2]))
    assert fit.validation_loss is None


def test_speed_is_a_curve_a_replica_and_ends_before_the_last_account() -> None:
    final = {**replicas("f", seconds=3.0, rows_per_second=0.0), "final": True}
    fit = fed(replicas("f", seconds=1.0), replicas("f", seconds=2.0), final)
    assert fit.rates.columns() == ([1.0, 2.0], [40.0, 40.0], [40.0, 40.0])


def test_a_straggler_is_named_until_it_has_caught_up() -> None:
    fit = fed(started("f"), straggler("f", slow=True))
    assert fit.stragglers == {1: "it computes 4 times as slowly as the others"}
    assert "Replica 1 on h:1 is slow" in fit.log[-1][2]
    assert not fed(straggler("f", slow=True), straggler("f", slow=False)).stragglers


def test_a_running_fit_that_says_nothing_is_silent_and_its_clock_stands_still() -> None:
    fit = fed(started("f"), now=100.0)
    assert not fit.silent(100.0 + SILENCE)
    assert fit.silent(101.0 + SILENCE)
    assert fit.seconds(10_000.0) == SILENCE
    assert not fed(started("f"), stopped("f")).silent(10_000.0)


def test_of_a_run_of_epochs_the_last_sentence_is_kept() -> None:
    fit = fed(started("f"), epochs("f", 1), epochs("f", 2), straggler("f", True), epochs("f", 3))
    kinds = [kind for _, kind, _ in fit.log]
    assert kinds == ["started", "epochs", "straggler", "epochs"]
    assert fit.log[1][2] == "Epoch 2: loss 0.5."


def test_foreign_events_leave_no_trace() -> None:
    store = FitStore()
    for foreign in (None, 3, "text", {"kind": "stopped"}, {**stopped("f"), "v": 1}):
        store.add(foreign, 0.0)
    assert (store.fits, store.revision) == ([], 0)
    store.add(event("started", "f") | {"kind": "of a newer version"}, 0.0)
    assert store.fits[0].outcome == "running"


SCRIPT = '<script>alert("x")</script>'


def shard(fit: str, **fields: Any) -> dict[str, Any]:
    given = {
        "shard": 0, "worker": "tcp://h:0", "seconds": 1.0, "final": False, "version": 3,
        "pushes": 6, "pushes_per_second": 6.0, "bytes": 600, "bytes_per_second": 600.0,
        "apply_seconds": 0.1, "nbytes": 4096, "staleness": [[3, 1], [4]],
    }  # fmt: skip
    return event("shard", fit, **{**given, **fields})


def test_staleness_stays_between_events_that_have_it_and_goes_with_async() -> None:
    store = FitStore()
    store.add(started("f", mode="async", together=False), 0.0)
    for histograms in ([[3, 1], [4]], []):
        store.add(shard("f", staleness=histograms), 0.0)
        assert store.fits[0].shards[0]["staleness"] == [[3, 1], [4]]
    store.add(started("f", mode="sync", together=True), 0.0)
    store.add(shard("f", staleness=[]), 0.0)
    assert store.fits[0].shards[0]["staleness"] == []


def failed(fit: str, **fields: Any) -> dict[str, Any]:
    given = {
        "error": "WorkerLostError", "message": "it died", "worker": "tcp://h:1", "rank": 1,
        "step": 1234, "epochs": 1, "seconds": 2.0,
    }  # fmt: skip
    return event("failed", fit, **{**given, **fields})


def loading(fit: str, **fields: Any) -> dict[str, Any]:
    given = {
        "name": "LinearClassifier", "phase": "loading", "loaded": 40, "partitions": 150,
        "seconds": 9.0,
    }  # fmt: skip
    return event("loading", fit, **{**given, **fields})


def test_the_page_says_how_many_partitions_are_loaded() -> None:
    store, headline = FitStore(), Headline(LIGHT)
    store.add(loading("f"), now=9.0)
    headline.update(view_of(store, [], now=10.0))
    said = re.sub("<[^>]*>", " ", headline.root.text)
    assert re.search(r"LinearClassifier 1\s+loading\s.*40\s+of 150 partitions, loading", said)
    store.add(loading("f", phase="encoding", loaded=7), now=10.0)
    headline.update(view_of(store, [], now=10.0))
    assert re.search(r"7\s+of 150 partitions, encoding", re.sub("<[^>]*>", " ", headline.root.text))
    store.add(started("f"), now=11.0)
    headline.update(view_of(store, [], now=12.0))
    assert "loading" not in headline.root.text
    store.add(loading("g"), now=20.0)
    store.add(failed("g"), now=21.0)
    assert store.fits[-1].outcome == "failed"


def every_kind() -> list[dict[str, Any]]:
    return [
        loading("f"), started("f"), replicas("f"), replicas("f", seconds=2.0), shard("f"),
        epochs("f", 1, validation=0.5), straggler("f", slow=True),
    ]  # fmt: skip


def changed(value: Any, new: Callable[[Any], Any]) -> Iterator[Any]:
    """A value with one of the things in it changed, each in turn."""
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from ({**value, name: other} for other in changed(inside, new))
    elif isinstance(value, list):
        for at, inside in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in changed(inside, new))
    else:
        yield new(value)


@pytest.mark.parametrize("new", [lambda _: object(), lambda _: SCRIPT, lambda _: [], lambda _: -1])
def test_what_events_are_not_made_of_is_left_out(new: Callable[[Any], Any]) -> None:
    """Any process may log anything: accepted events follow the schema, field by field."""
    panels, seen = [panel(LIGHT) for panel in PANELS.values()], 0
    for one in (*every_kind(), stopped("f"), failed("f")):
        for odd in changed(one, new):
            store, collector = FitStore(), FitCollector()
            collector.stores.add(store)
            for given in (started("f"), odd):
                before = store.revision
                store.add(given, 0.0)
            list(collector.collect())
            if store.revision > before:  # a text instead of a text, say
                seen += 1
                for fit in store.fits:
                    for panel in panels:
                        panel.update(view_of(store, [fit.id], 0.0))
    assert (seen == 0) == (type(new(0)) in (object, list))


@pytest.mark.slow
def test_texts_of_events_are_texts_on_the_page() -> None:
    def text(value: Any) -> Any:
        return SCRIPT if isinstance(value, str) else value

    panels = [panel(LIGHT) for panel in PANELS.values()]

    def shown(store: FitStore) -> list[str]:
        for panel in panels:
            panel.update(view_of(store, ["f"], 0.0))
        models = [model for panel in panels for model in panel.root.references()]
        return [model.text for model in models if isinstance(model, Div)]

    for end in ([], [stopped("f")], [failed("f")]):
        said = [*every_kind(), *end]
        for at, one in enumerate(said):
            for odd in changed(one, text):
                store = FitStore()
                for given in (*said[:at], odd, *said[at + 1 :]):
                    store.add(given, 0.0)
                assert not any("<script" in words for words in shown(store))
    store = FitStore()
    for one in (*every_kind(), failed("f", message=SCRIPT)):
        store.add(one, 0.0)
    assert any("&lt;script&gt;" in words for words in shown(store))


def test_fits_are_forgotten_the_first_ended_first_and_stay_forgotten() -> None:
    store = FitStore(limit=3)
    store.add(started("endless"), 0.0)
    for number in range(10):
        store.add(started(f"f{number}"), 0.0)
        store.add(stopped(f"f{number}"), 0.0)
    assert [fit.id for fit in store.fits] == ["endless", "f8", "f9"]
    assert store.fits[-1].name == "LinearClassifier 11"
    store.add(replicas("f0"), 0.0)  # a late message is no new fit
    assert store.get("f0") is None
    assert len(store.fits) == 3


def size(thing: Any, seen: set[int]) -> int:
    """Bytes of an object and of all that it holds."""
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    inside: list[Any] = list(getattr(thing, "__dict__", {}).values())
    if isinstance(thing, dict):
        inside += [*thing, *thing.values()]
    elif not isinstance(thing, str | bytes) and hasattr(thing, "__iter__"):
        inside += list(thing)
    return sys.getsizeof(thing) + sum(size(part, seen) for part in inside)


@pytest.mark.slow
def test_memory_is_bounded_by_the_number_of_fits_and_points() -> None:
    def filled(fits: int, length: int) -> FitStore:
        store = FitStore()
        for number in range(fits):
            name = f"f{number}"
            store.add(started(name), 0.0)
            for epoch in range(1, length):
                store.add(replicas(name, seconds=float(epoch), epoch=epoch), 0.0)
                store.add(epochs(name, epoch), 0.0)
                store.add(straggler(name, slow=bool(epoch % 2)), 0.0)
            store.add(stopped(name), 0.0)
        return store

    once = filled(FITS, POINTS)
    often = filled(3 * FITS, 3 * POINTS)
    assert len(often.fits) == FITS
    assert all(len(fit.losses) <= POINTS and len(fit.log) <= SENTENCES for fit in often.fits)
    # Numbers are counted as objects, of which some are shared.
    assert size(often, set()) < 1.5 * size(once, set())


@pytest.mark.parametrize("limit", [4, 7, 400])
def test_a_series_keeps_its_ends_its_bound_and_its_order(limit: int) -> None:
    series = Series(limit)
    for x in range(5_000):
        series.add(float(x), -float(x))
        assert len(series) <= limit
        assert series.last == (x, -x)
    xs, ys = series.columns()
    assert (xs[0], xs[-1]) == (0.0, 4999.0)
    assert xs == sorted(set(xs))
    assert ys == [-x for x in xs]
    assert len(xs) >= limit // 2


def test_the_page_follows_what_runs_unless_fits_are_chosen() -> None:
    store = FitStore()
    for one in (started("a"), stopped("a"), started("b"), started("c")):
        store.add(one, 0.0)

    def shown(*chosen: str, now: float = 0.0) -> tuple[list[str], str]:
        view = view_of(store, chosen, now)
        assert view.focus is not None
        return [fit.id for fit in view.fits], view.focus.id

    assert shown() == (["b", "c"], "c")
    assert [fit.id for fit in view_of(store, (), 0.0).others] == ["a"]
    assert shown("c", "a") == (["c", "a"], "a")
    assert shown("forgotten") == (["b", "c"], "c")
    store.add(stopped("c"), 0.0)
    assert shown() == (["b"], "b")
    assert shown(now=1.0 + SILENCE) == (["c"], "c")  # b is silent: the last one it is


def test_every_event_that_people_should_know_of_has_words() -> None:
    assert sentence(started("f", optimizer="lbfgs", epochs_before=1)) == (
        "Starts in sync by L-BFGS: 2 replicas, 1 shard, 100 rows, 6 parameters, "
        "after 1 epoch before."
    )
    assert sentence(epochs("f", 4, validation=0.3)) == "Epoch 4: loss 0.25, 0.3 on held-out rows."
    assert sentence(failed("f", message="it died.")) == (
        "Failed after 2.00 s, replica 1 on h:1 in step 1,234: WorkerLostError: it died."
    )
    nowhere = dict.fromkeys(["worker", "rank", "step"])
    assert sentence(failed("f", **nowhere)) == ("Failed after 2.00 s: WorkerLostError: it died.")


@pytest.mark.parametrize("panel", [Losses, Rates, Times])
def test_a_figure_that_is_seen_is_never_emptied(panel: type[Losses | Rates | Times]) -> None:
    """Browsers paint between two changes, and complain of a figure that has no data by then."""
    store, document = FitStore(), Document()
    shown = panel(LIGHT)
    document.add_root(shown.root)
    seen: list[bool] = []

    def look(_: object) -> None:
        for figure in shown.root.children:
            if isinstance(figure, Plot):
                sources = [glyph.data_source.data for glyph in figure.select(GlyphRenderer)]
                seen.append(any(data["y"] for data in sources))

    document.on_change(look)
    for fit in ("first", "second"):
        for one in (started(fit), epochs(fit, 1, 2), replicas(fit), replicas(fit, seconds=2.0)):
            store.add(one, 0.0)
            shown.update(view_of(store, [fit], 0.0))
        store.add(stopped(fit), 0.0)
    assert seen
    assert all(seen)
