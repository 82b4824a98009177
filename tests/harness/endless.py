"""Fits without an end, each in a thread that says when it is to end, and what the fit has lost."""

from __future__ import annotations

import threading
import weakref
from typing import Any, ClassVar

import pytest

from dps.training.run.recovery import Loss, Recovery
from dps.training.run.supervise import Watcher


class EndlessFit(threading.Thread):
    """A fit in a thread, which must have been prepared by `fits_end_when_told`.

    Attributes
    ----------
    stopping : threading.Event
        Set to end the fit after an epoch.
    recoveries : list of Loss
        After which it has gone on.
    rows : int
    workers : tuple of str
        Those that train, once they do.
    error : BaseException or None
        What it ended with.
    """

    #: All that may still run.
    made: ClassVar[weakref.WeakSet[EndlessFit]] = weakref.WeakSet()

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:
        super().__init__()
        self.made.add(self)
        self.stopping = threading.Event()
        self.recoveries: list[Loss] = []
        self.error: BaseException | None = None
        self.workers: tuple[str, ...] = ()
        self.estimator, self.rows = estimator.set_params(max_iter=10**6, tol=None), len(y)
        self._data = X, y

    def run(self) -> None:
        try:
            self.estimator.fit(*self._data)
        except BaseException as error:
            self.error = error

    def end(self, losses: int | None = None) -> None:
        """End it; check its number of losses, if given, and the rows that each epoch counts."""
        self.stopping.set()
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise AssertionError("the fit has failed") from self.error
        assert losses is None or len(self.recoveries) == losses
        records = self.estimator.history_
        assert [record["epoch"] for record in records] == list(range(1, len(records) + 1))
        assert {record["rows"] for record in records} == {self.rows}


def end_all() -> None:
    """End what a test that has failed has left: it would slow all that follow."""
    running = [fit for fit in EndlessFit.made if fit.is_alive()]
    for fit in running:
        fit.stopping.set()
    for fit in running:
        fit.join(60)


def fits_end_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each fit of an `EndlessFit` note what it has lost, and end when that says so."""
    fetch, after, loading = Watcher._fetch, Recovery.after, Recovery.while_loading

    def fetched(self: Watcher) -> bool:
        ends, thread = fetch(self), threading.current_thread()
        if isinstance(thread, EndlessFit):
            thread.workers = tuple(rank.worker for rank in self._plan.ranks)
        return ends or (isinstance(thread, EndlessFit) and thread.stopping.is_set())

    def recovered(self: Recovery, *args: Any) -> Any:
        found, thread = after(self, *args), threading.current_thread()
        if isinstance(thread, EndlessFit):
            thread.recoveries.append(self.losses[-1])
        return found

    def loaded(self: Recovery, epoch: int) -> list[Loss]:
        found, thread = loading(self, epoch), threading.current_thread()
        if isinstance(thread, EndlessFit):
            thread.recoveries += found
        return found

    # Else a fit that no one watches looks at its epochs once in half a second.
    monkeypatch.setattr(Watcher, "_fetch", fetched)
    monkeypatch.setattr(Recovery, "after", recovered)
    monkeypatch.setattr(Recovery, "while_loading", loaded)
