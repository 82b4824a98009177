"""Reports on the phases before training: a bar, log lines, and events.

Reports begin after a second and are sent once a second.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping

from dps.estimators.fit.progress import BarBefore, showing
from dps.monitor.events import Kind, event
from dps.training.replica.user_errors import described

_log = logging.getLogger("dps")

#: Seconds between lines in the log, and before the first report.
_LINES, _QUIET = 10.0, 1.0


class Loading:
    """Reports the phases before training, with the number of partitions done.

    name: of the estimator.
    verbose: 1 shows a bar, more the log.
    fit: id of the fit.
    publish: sends an event without waiting; None sends none.
    """

    def __init__(
        self,
        name: str,
        verbose: int,
        fit: str,
        publish: Callable[[Mapping[str, object]], None] | None,
    ) -> None:
        self._name, self._fit, self._publish = name, fit, publish
        self._bar = BarBefore() if verbose == 1 else None
        self._shown = contextlib.ExitStack()
        if verbose > 1:
            self._shown.enter_context(showing(2, 0))
        self._began = time.monotonic()
        self._due = self._began + _LINES
        self._said = False
        self.phase = "loading"
        self._compared = self._partitions = 0

    def __call__(self, done: int, total: int) -> None:
        """Report the number of partitions done."""
        self._partitions = total
        self._show(f"{self.phase}, {done} of {total} partitions", done, total)
        self._tell(done)

    def compare(self) -> None:
        """Report the start of another fit to a sample of the rows."""
        self._compared += 1
        self.phase = "comparing fits to a sample"
        if time.monotonic() - self._began >= _QUIET:
            self._show(f"{self.phase}, {self._compared}", 0, None)
        if self._said:
            self._tell(self._partitions)

    def _tell(self, done: int) -> None:
        self._send(
            "loading", name=self._name, phase=self.phase, loaded=done, partitions=self._partitions
        )
        self._said = True

    def _show(self, text: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(text, done, total)
        if now >= self._due:
            self._due = now + _LINES
            _log.info("%s", text)

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
