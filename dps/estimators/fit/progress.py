"""The output of `verbose` during a fit: a bar, or a log line per epoch."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dps._warned import warned
from dps.training.epochs.records import EpochRecord

#: Called with closed epochs, in order.
Progress = Callable[[Sequence[EpochRecord]], None]

_log = logging.getLogger("dps")

_BEFORE = "{desc} |{bar}| {elapsed}"
# "at most", because the stopping rule may end the fit at any epoch.
_FORMAT = "epoch {n_fmt}/{total_fmt} |{bar}| {elapsed}, at most {remaining} left{postfix}"


@contextlib.contextmanager
def showing(verbose: int, max_iter: int) -> Iterator[Progress]:
    """Show the progress of one fit.

    verbose: 0 shows nothing, 1 a bar on stderr or in the notebook. From 2 on it shows the logger
        "dps", with a line per epoch, through the program's handlers or else on stderr.
    max_iter: largest number of epochs.
    """
    if verbose > 1:
        with _LOG.visible():
            yield _update_nothing
    elif verbose:
        with _bar(max_iter) as update:
            yield update
    else:
        yield _update_nothing


def _update_nothing(records: Sequence[EpochRecord]) -> None:
    """Do nothing: the trainer logs epochs."""


@contextlib.contextmanager
def _bar(max_iter: int) -> Iterator[Progress]:
    with _tqdm()(total=max_iter, dynamic_ncols=True, bar_format=_FORMAT) as bar:

        def update(records: Sequence[EpochRecord]) -> None:
            if records:
                bar.set_postfix_str(_figures(records[-1]), refresh=False)
                bar.update(len(records))

        yield update
        bar.total = bar.n  # it ended by its own rule; closing the bar shows that


def _tqdm() -> Any:
    """Return the class of bars."""
    with warned():  # without ipywidgets it is a text bar
        from tqdm.auto import tqdm
    return tqdm


class BarBefore:
    """A bar for the phases before training, shown from the first report on."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._began = time.time()

    def update(self, text: str, done: int, total: int | None) -> None:
        """Show a text, and the share that is done if the total is known."""
        if self._bar is None:
            self._bar = _tqdm()(
                desc=text, initial=done, total=total, dynamic_ncols=True, bar_format=_BEFORE,
                leave=False,
            )  # fmt: skip
            self._bar.start_t = self._began
        self._bar.n, self._bar.total = done, total
        self._bar.set_description_str(text)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


def _figures(record: EpochRecord) -> str:
    figures = [f"loss {record.loss:.6g}"]
    if not math.isnan(record.validation_loss):
        figures.append(f"validation {record.validation_loss:.6g}")
    if not math.isnan(record.validation_score):
        figures.append(f"score {record.validation_score:.6g}")
    return ", ".join([*figures, f"{record.rows_per_second:,.0f} rows/s"])


def _heard() -> bool:
    """True if a handler of the program receives the log lines of epochs."""
    logger: logging.Logger | None = _log
    while logger is not None:
        for handler in logger.handlers:
            if handler.level <= logging.INFO and not isinstance(handler, logging.NullHandler):
                return True
        logger = logger.parent if logger.propagate else None
    return False


class _Log:
    """Makes log lines of epochs visible while at least one fit needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fits = 0
        self._level = logging.NOTSET
        self._handler: logging.Handler | None = None

    @contextlib.contextmanager
    def visible(self) -> Iterator[None]:
        with self._lock:
            self._fits += 1
            if self._fits == 1:
                self._show()
        try:
            yield
        finally:
            with self._lock:
                self._fits -= 1
                if self._fits == 0:
                    self._restore()

    def _show(self) -> None:
        self._level = _log.level
        if not _log.isEnabledFor(logging.INFO):
            _log.setLevel(logging.INFO)
        if not _heard():
            self._handler = logging.StreamHandler()
            self._handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            _log.addHandler(self._handler)

    def _restore(self) -> None:
        _log.setLevel(self._level)
        if self._handler is not None:
            _log.removeHandler(self._handler)
            self._handler = None


_LOG = _Log()
