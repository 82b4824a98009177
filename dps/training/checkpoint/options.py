"""Options of checkpoints: where they go, how often, and how many are kept."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dps._checks import seconds_of
from dps._parameters import check_integer

if TYPE_CHECKING:
    from dps.training.checkpoint.lock import PathLock


@dataclass(frozen=True)
class Checkpoint:
    """Options of checkpoints: where they go, how often one is taken, and how many are kept.

    A checkpoint is a directory in `path`. Shards write their files beside the training, and a
    manifest with their digests comes last. ``fit(..., resume=True)`` continues from the newest
    complete one. Checkpoints are taken at the ends of epochs, within long ones in sync and
    allreduce (see :class:`Sync`), and at the end of the fit.

    Parameters
    ----------
    path : str or path
        A directory for this one fit that all workers can write to. With a protocol, such as
        ``"s3://bucket/fit"``, any file system of fsspec.
    every : str or float, default="60s"
        Time between two checkpoints, as Dask writes times, or in seconds. 0 takes one after each
        epoch, as far as they can be written.
    keep : int, default=3
        Number of checkpoints that are kept.

    Raises
    ------
    ValueError, TypeError
        A parameter is not as it should be.

    Examples
    --------
    >>> import dps
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> checkpoint = dps.Checkpoint("memory://fits/iris", every="30s")
    >>> model = dps.MLPClassifier(max_iter=5, random_state=0, checkpoint=checkpoint)
    >>> model.fit(X, y, resume=True).n_iter_  # there is none yet: from the beginning
    5
    >>> model.fit(X, y, resume=True).n_iter_  # nothing is left to do
    5
    """

    path: str | os.PathLike[str]
    every: Any = "60s"
    keep: int = 3

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise TypeError(
                f"The 'path' parameter of Checkpoint must be a str or a path. Got {self.path!r} "
                "instead."
            )
        object.__setattr__(self, "path", os.fspath(self.path))
        check_integer(self, "keep", 1)
        seconds = self.seconds
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(
                "The 'every' parameter of Checkpoint must be a time from 0 on. Got "
                f"{self.every!r} instead."
            )

    @property
    def seconds(self) -> float:
        """Seconds between two checkpoints."""
        seconds = seconds_of(self.every)
        if seconds is None:
            raise ValueError(
                "The 'every' parameter of Checkpoint must be seconds, or a time such as '60s', "
                f"'5m' or '1h'. Got {self.every!r} instead."
            )
        return seconds


@dataclass(frozen=True)
class CheckpointRun:
    """The checkpoints of one fit, as the trainer needs them."""

    where: Checkpoint
    lock: PathLock  # the lock on the path; it knows which runs may be removed
    run: str  # id of the run: a fit and all fits that resume it
    # Description of the fit, in types that `dps.training.saved` can write.
    subject: dict[str, Any]

    @property
    def path(self) -> str:
        """The path, absolute, so that all processes mean the same one."""
        return self.lock.path
