"""Exceptions of users' code on their way from a replica to whoever called `fit`.

What is raised may be of any class: one that cannot be pickled, cannot be unpickled from what it
was pickled as, or is known to the worker alone. Then its words travel in its place.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

import cloudpickle

from dps.errors import ReplicaError


def described(error: BaseException) -> str:
    """The class of an exception, and what it says if it can."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as broken:
        return f"{type(error).__name__}, whose words raise {type(broken).__name__}"


@dataclass(frozen=True)
class SentCause:
    """An exception, and what it said where it was raised.

    Examples
    --------
    >>> SentCause.of(KeyError("a")).opened()
    KeyError('a')
    """

    contents: bytes | None  # itself, if it can be pickled
    words: str  # what it said, and its traceback
    place: str

    @classmethod
    def of(cls, error: BaseException) -> SentCause:
        """What is sent of an exception."""
        try:
            contents: bytes | None = cloudpickle.dumps(error)
        except Exception:
            contents = None
        place = "".join(traceback.format_tb(error.__traceback__))
        return cls(contents, described(error), place)

    def opened(self) -> BaseException:
        """The exception, or a `ReplicaError` that says all of it in words."""
        try:
            found = None if self.contents is None else pickle.loads(self.contents)
        except Exception:
            found = None
        if isinstance(found, BaseException):
            return found
        return ReplicaError(
            f"{self.words}\n\nThis is all that can be sent of it. It was raised at:\n{self.place}"
        )
