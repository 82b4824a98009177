"""Errors of a training run, as distinct from bad arguments.

Bad arguments and bad data raise ``ValueError`` or ``TypeError``. All errors here are a
:class:`DPSError`, which is neither, and have the place: worker, rank and step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

__all__ = [
    "ClusterError",
    "DPSError",
    "FencedError",
    "NonFiniteError",
    "ReplicaError",
    "ServerLostError",
    "StalledError",
    "StoppedError",
    "TableFullError",
    "UnknownOutcomeError",
    "VersionError",
    "WindowError",
    "WorkerLostError",
]


def __dir__() -> list[str]:
    return __all__


class DPSError(Exception):
    """Base of all errors of a training run.

    Parameters
    ----------
    message : str
        What happened and what to do.
    worker : str, optional
        Address of the worker it happened on.
    rank : int, optional
        The replica.
    step : int, optional
        The replica's step, counted from 1 over the whole fit.

    Examples
    --------
    >>> from dps.errors import StalledError
    >>> print(StalledError("no progress for 60 s", rank=2, step=41))
    no progress for 60 s (rank 2, step 41)
    """

    def __init__(
        self,
        message: str,
        *,
        worker: str | None = None,
        rank: int | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.worker = worker
        self.rank = rank
        self.step = step

    def __str__(self) -> str:
        places = [
            f"{name} {value}"
            for name, value in (("worker", self.worker), ("rank", self.rank), ("step", self.step))
            if value is not None
        ]
        return f"{self.message} ({', '.join(places)})" if places else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        where = {"worker": self.worker, "rank": self.rank, "step": self.step}
        return _rebuild, (type(self), self.message, where)


def _rebuild(kind: type[DPSError], message: str, where: dict[str, Any]) -> DPSError:
    return kind(message, **where)


class ClusterError(DPSError):
    """The cluster cannot run a fit: no workers, a closed client, a lost scheduler."""


class VersionError(DPSError):
    """A worker has no dps, or a worker or the scheduler has another version."""


class WorkerLostError(DPSError):
    """A worker that took part in a fit is lost."""


class ServerLostError(DPSError):
    """The process that owns a shard is lost or does not answer."""


class UnknownOutcomeError(ServerLostError):
    """A write to a parameter server may have been done, completely or in part.

    The connection ended before the shard answered, its mirror could not be reached, or one of
    several shards was lost. Call `retry` to do the rest: each shard knows the last writes of its
    callers, so nothing is done twice.
    """

    _again: Callable[[], Any] | None = None

    def retry(self) -> Any:
        """Repeat the write where it has not been done; return the result of the first call.

        Raises
        ------
        UnknownOutcomeError
            It is still not known; or too much time has passed: as much as the server's `timeout`.
        RuntimeError
            It cannot be repeated: it was a function, see `ParameterServer.apply`, or the error
            comes from another process.
        """
        if self._again is None:
            raise RuntimeError(
                "this write cannot be repeated from here: look at what the server has"
            )
        return self._again()


class StalledError(DPSError):
    """A replica, shard or task made no progress within the timeout."""


class ReplicaError(DPSError):
    """A replica raised an exception that cannot be sent, or replicas disagree.

    Exceptions of your model, loss or other code arrive as they were raised, with a note that names
    the replica. If one cannot be pickled, this error has its text and traceback.
    """


class NonFiniteError(DPSError):
    """A loss, a gradient or an update is NaN or infinite."""

    @classmethod
    def of(
        cls,
        what: Literal["loss", "gradient", "update"],
        *,
        rank: int | None = None,
        step: int | None = None,
    ) -> NonFiniteError:
        """Return the error of a step, with advice."""
        happened = "an update overflowed" if what == "update" else f"the {what} is NaN or infinite"
        return cls(f"{happened}; lower learning_rate or scale the features", rank=rank, step=step)


class TableFullError(DPSError):
    """A table of embeddings has no room for another row."""


class FencedError(DPSError):
    """A message or a replica of an earlier attempt was refused."""


class WindowError(DPSError):
    """A shard's window cannot be mapped although the mode requires it."""


class StoppedError(DPSError):
    """The fit was stopped during this replica's work; another error has the reason."""
