"""Exceptions of users' code on their way from a replica to the caller of `fit`.

They arrive as they were raised, with class, traceback, causes and notes. An exception that cannot
be pickled, or unpickled here, is replaced by a `ReplicaError` with its text.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

import cloudpickle
from tblib import Traceback

from dps.errors import DPSError, ReplicaError

#: Largest number of chained causes that are sent.
_CAUSES = 8


def words_of(error: BaseException) -> str:
    """Return the message of an exception, if it can be read."""
    try:
        return str(error)
    except Exception as broken:
        return f"its message raises {type(broken).__name__}"


def described(error: BaseException) -> str:
    """Return the class and the message of an exception."""
    return f"{type(error).__name__}: {words_of(error)}"


def with_place(error: BaseException, where: DPSError) -> BaseException:
    """Add a note to an exception of a user's code that names the replica."""
    error.add_note(f"raised in replica {where.rank} at step {where.step} (worker {where.worker})")
    return error


def _made(kind: Any, args: tuple[Any, ...], state: Any = None) -> Any:
    made = kind(*args)
    if state:
        made.__setstate__(state)
    return made


@dataclass(frozen=True)
class SentCause:
    """An exception, and the parts of it that pickling would lose.

    Examples
    --------
    >>> SentCause.of(KeyError("a")).opened()
    KeyError('a')
    """

    contents: bytes | None  # the pickled exception, if it can be pickled
    words: str  # its message
    place: str  # its traceback as text
    frames: dict[str, object] | None  # its traceback, see `tblib.Traceback.to_dict`
    notes: tuple[str, ...] = ()
    cause: SentCause | None = None

    @classmethod
    def of(cls, error: BaseException, causes: int = _CAUSES) -> SentCause:
        """Make it from an exception."""
        try:
            # Not a pickled exception: `tblib`, which Dask installs, would lose attributes
            # that C code keeps, such as the code of SystemExit.
            contents: bytes | None = cloudpickle.dumps(error.__reduce_ex__(2))
        except Exception:
            contents = None
        found = error.__traceback__
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return cls(
            contents,
            described(error),
            "".join(traceback.format_tb(found)),
            None if found is None else Traceback(found).to_dict(),
            tuple(getattr(error, "__notes__", ())),
            None if before is None or not causes else cls.of(before, causes - 1),
        )

    def opened(self) -> BaseException:
        """The exception, or a `ReplicaError` that holds its text."""
        try:
            found = None if self.contents is None else _made(*pickle.loads(self.contents))
        except Exception:
            found = None
        if not isinstance(found, BaseException):
            return ReplicaError(
                f"a replica failed with {self.words}\n\nThe exception cannot be sent from the "
                f"worker. It was raised at:\n{self.place}"
            )
        if self.notes:
            found.__notes__ = list(self.notes)
        if self.cause is not None:
            found.__cause__ = self.cause.opened()
        if self.frames is not None:
            found = found.with_traceback(Traceback.from_dict(self.frames).as_traceback())
        return found
