"""Report the progress of loading: a bar, events for the page, and lines in the log.

Reports begin after a second and come once a second.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dps.estimators.fit.progress import LoadingBar, showing
from dps.monitor.events import Kind, event
from dps.training.replica.user_errors import described

if TYPE_CHECKING:
    from dps.estimators.base.trainable import Trainable

_log = logging.getLogger("dps")

#: Seconds between lines in the log.
_LINES = 10.0


class Loading:
    """Reports how many partitions are loaded.

    estimator: its class names the fit, and `verbose` shows the bar.
    fit: id of the fit.
    publish: sends an event without waiting; None sends none.
    """

    def __init__(
        self,
        estimator: Trainable,
        fit: str,
        publish: Callable[[Mapping[str, object]], None] | None,
    ) -> None:
        self._name, self._fit, self._publish = type(estimator).__name__, fit, publish
        self._bar = LoadingBar() if estimator.verbose == 1 else None
        self._shown = contextlib.ExitStack()
        if estimator.verbose > 1:
            self._shown.enter_context(showing(2, 0))
        self._began = time.monotonic()
        self._due = self._began + _LINES
        self._said = False

    def __call__(self, done: int, total: int) -> None:
        """Report the number of loaded partitions."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(done, total)
        if now >= self._due:
            self._due = now + _LINES
            _log.info("loading, %d of %d partitions", done, total)
        self._send("loading", name=self._name, loaded=done, partitions=total)
        self._said = True

    def end(self, error: BaseException | None = None) -> None:
        """End the report, with an event if loading failed; may be called again."""
        self._shown.close()
        if self._bar is not None:
            self._bar.close()
        if error is not None and self._said:
            self._send(
                "failed", error=type(error).__name__, message=described(error), worker=None,
                rank=None, step=None, epochs=0,
            )  # fmt: skip
        self._said = False

    def _send(self, kind: Kind, **fields: object) -> None:
        if self._publish is not None:
            seconds = round(time.monotonic() - self._began, 3)
            self._publish(event(kind, self._fit, seconds=seconds, **fields))
