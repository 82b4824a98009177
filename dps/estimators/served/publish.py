"""Publication of a fit's model in the tensors of a parameter server during training.

This module defines how a snapshot of several tensors is written so that a reader recognises a
complete one (``read.py``). The server exists before a fit, and outlives it.

Protocol. The tensor `TRAINING` is one row, which is never cut, of four numbers
    BEGUN   snapshots that a writer began
    DONE    the last one that is whole
    EPOCHS  closed epochs behind it
    RECORD  the snapshot with which the note `NOTE` was written: what the estimator is, but for the
            values of the tensors
A fit makes BEGUN one larger; it writes note and tensors; then it makes DONE equal to BEGUN. A
reader who finds both equal, reads, and finds the row unchanged has read one snapshot. A fit that
finds another BEGUN than it has left knows that another fit writes there, and stops writing. What
a crash leaves: tensors of two snapshots, and BEGUN above DONE, which the next fit puts right.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps._warned import warn
from dps.errors import DPSError
from dps.parameter_server import ParameterServer
from dps.training.epochs.records import EpochRecord
from dps.training.job import Job
from dps.training.state import Snapshot

if TYPE_CHECKING:
    from dps.estimators.base.trainable import Trainable

TRAINING, NOTE = "training_", "estimator"
#: Pause between two writes, in durations of a write: the writing thread's caller also watches the
#: fit.
_REST = 4.0


@contextmanager
def server_of(given: object, client: Any) -> Iterator[ParameterServer | None]:
    """Yield the given server, the server with a name, or None.

    Raises LookupError: there is none of that name.
    Raises TypeError: it is neither a server nor a name.
    """
    if given is None or isinstance(given, ParameterServer):
        yield given
        return
    if not isinstance(given, str):
        raise TypeError(
            f"server must be a dps.ParameterServer, the name of one or None, got {given!r}"
        )
    server = ParameterServer.connect(given, client=client)
    try:
        yield server
    finally:
        server.disconnect()


class Publisher:
    """Writes the model of one fit to a server.

    estimator: the one that is fitted.
    restored: makes the full model and its parameters from the trained ones.
    fitted: makes the fitted attributes from trained parameters and closed epochs.
    Raises ValueError: the server's tensors differ from the model's; the message names them and the
        remedy.
    Raises ServerLostError: it has been closed, or a shard is lost.
    """

    def __init__(
        self,
        server: ParameterServer,
        estimator: Trainable,
        job: Job,
        restored: Callable[[Snapshot], tuple[Any, NDArray[np.floating]]],
        fitted: Callable[[Snapshot, Sequence[EpochRecord]], dict[str, Any]],
    ) -> None:
        self._server, self._estimator = server, estimator
        self._restored, self._fitted = restored, fitted
        if job.model.layout.table is not None:
            raise ValueError(
                "server= is not possible for a model with a table, whose rows are made as they are "
                "touched: leave max_embeddings=None"
            )
        start = Snapshot(job.position.params[None], 0, np.empty((2, 0), np.int64))
        tensors = estimator._tensors(*restored(start))
        self._prepare({**tensors, TRAINING: np.zeros((1, 4))})
        self._row = row_of(server)
        self._begun = self._row[0]
        self._described = False
        self._over = False
        self._why: str | None = None
        self._next = 0.0
        self._thread: threading.Thread | None = None

    def _prepare(self, tensors: Mapping[str, NDArray[np.floating]]) -> None:
        """Create the server's tensors, or check those that exist."""
        server = self._server
        there = server.dtypes
        for name in tensors.keys() & there:
            found, wanted = (server.tensors[name], there[name]), tensors[name]
            if found != (wanted.shape, wanted.dtype.name):
                raise ValueError(
                    f"the tensor {name!r} of {_called(server)} is {found[1]} of the shape "
                    f"{found[0]}, and the model's is {wanted.dtype} of the shape {wanted.shape}: "
                    "train into another server, one model in each"
                )
        missing = {name: wanted for name, wanted in tensors.items() if name not in there}
        if not missing:
            return
        try:
            server.create(missing)
        except ValueError:
            if not missing.keys() & server.dtypes.keys():
                raise
            self._prepare(tensors)  # another fit has created them since

    def epochs(
        self, records: Sequence[EpochRecord], trained: Callable[[], Snapshot | None]
    ) -> None:
        """Write the model after the last of the closed epochs, in a thread.

        An epoch is skipped if the fit is further, or the last write took long. The caller watches
        the fit, and does not wait for a frozen server.
        """
        self._warn()
        writing = self._thread is not None and self._thread.is_alive()
        if self._over or writing or time.monotonic() < self._next or (found := trained()) is None:
            return
        made: Any = copy.copy(self._estimator)
        vars(made).update(self._fitted(found, records))
        self._thread = threading.Thread(
            target=self._write_beside, args=(found, made), name="dps-publisher", daemon=True
        )
        self._thread.start()

    def end(self, trained: Snapshot) -> None:
        """Write the fitted model and the description of the estimator."""
        if self._thread is not None:
            self._thread.join()  # its calls have deadlines
        if not self._over:
            self._write(trained, self._estimator, describe=True)
        self._warn()

    def _write_beside(self, trained: Snapshot, estimator: Trainable) -> None:
        began = time.monotonic()
        try:
            self._write(trained, estimator, describe=not self._described)
        except Exception as error:  # the fit continues without readers
            self._stop(f"{type(error).__name__}: {error}")
        self._described = True
        now = time.monotonic()
        self._next = now + _REST * (now - began)

    def _write(self, trained: Snapshot, estimator: Trainable, describe: bool) -> None:
        """Write a snapshot, and optionally the note that describes the estimator."""
        from dps.estimators.files.save import packed

        server = self._server
        tensors = estimator._tensors(*self._restored(trained))
        try:
            begun, _, _, described = row_of(server)
            if begun not in (self._row[0], self._begun):  # the last write was interrupted there
                self._stop("another fit trains into it, too")
                return
            self._begun = begun = begun + 1
            server.assign(TRAINING, np.array([[begun, *self._row[1:]]]))
            if describe:
                server.put_note(NOTE, packed(estimator))
                described = begun
            for name, values in tensors.items():
                server.assign(name, values)
            self._row = np.array([begun, begun, estimator._carry.epochs, described])
            server.assign(TRAINING, self._row[None])
        except DPSError as error:
            self._stop(str(error))

    def _stop(self, why: str) -> None:
        self._over, self._why = True, why

    def _warn(self) -> None:
        """Warn once, in the thread that calls `fit`, that writing has stopped."""
        if (why := self._why) is not None:
            self._why = None
            warn(
                f"the fit goes on, and its model is no longer written into "
                f"{_called(self._server)}: {why}",
                UserWarning,
                stacklevel=3,
            )


def row_of(server: ParameterServer) -> NDArray[np.float64]:
    """Return the row of `TRAINING`.

    Raises KeyError: no fit has begun.
    """
    return np.asarray(server.pull(TRAINING))[0]


def _called(server: ParameterServer) -> str:
    return "a server without a name" if server.name is None else f"the server {server.name!r}"
