"""The Actor: owns a window, and answers short questions about it.

It knows no mode, and does not stand in the way of a step: ranks work in the window themselves, or a
thread does on behalf of one that is far (``dps/transport``). When it goes, whoever still uses the
window is stopped: also when nobody closes it, because its client has died and Dask lets it go.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dps._runtime.activity import STEPS
from dps._runtime.ends import MappedEnd
from dps.optimizers.update import Update
from dps.server.host import host_id
from dps.server.memory import sweep
from dps.server.operations import keep_snapshot, read_snapshot
from dps.server.window import ABORTED, Field, Window, WindowSpec, Word, announce

__all__ = ["Initial", "ParameterShard", "ShardSpec", "ShardStatus", "Watched", "WindowCard"]


@dataclass(frozen=True)
class Watched:
    """What somebody who watches a fit should know and a window does not say.

    Parameters
    ----------
    workers : tuple of str
        The worker of each rank.
    together : bool
        Whether ranks wait for each other at every step.
    """

    workers: tuple[str, ...]
    together: bool


@dataclass(frozen=True)
class Initial:
    """Parameters and optimizer state to start from; what is all the same takes no room.

    Parameters
    ----------
    size : int
    dtype : str
    rows : tuple
        Parameters, then rows of state: a number, or (size,) of them.
    """

    size: int
    dtype: str
    rows: tuple[float | NDArray[np.floating], ...]

    @classmethod
    def of(cls, params: NDArray[np.floating], state: NDArray[np.floating]) -> Initial:
        """From (n,) parameters and (state_rows, n) of state."""
        rows = [
            float(row[0]) if row.size and (row == row[0]).all() else np.ascontiguousarray(row)
            for row in (params, *state)
        ]
        return cls(params.size, str(params.dtype), tuple(rows))

    def values(self) -> NDArray[np.floating]:
        """As (1 + state_rows, n)."""
        made = np.empty((len(self.rows), self.size), self.dtype)
        for row, given in zip(made, self.rows, strict=True):
            row[:] = given
        return made


@dataclass(frozen=True)
class ShardSpec:
    """Everything a shard is made from.

    Parameters
    ----------
    window : WindowSpec
    update : Update or None
        How gradients are applied; None where replicas hold the parameters.
    end : type of MappedEnd
        What steps of a rank go through, as its mode has it.
    initial : Initial
        Parameters of this shard and optimizer state.
    version : int
        Updates that lie behind `params` and `state`.
    shared : bool
        Whether the window should be a file that other processes can map.
    timeout : float
        Seconds without progress that a waiting rank tolerates.
    watched : Watched or None
        None where nothing is to be said of the fit.
    """

    window: WindowSpec
    update: Update | None
    end: type[MappedEnd]
    initial: Initial
    version: int
    shared: bool
    timeout: float
    watched: Watched | None = None


@dataclass(frozen=True)
class WindowCard:
    """How a replica finds out whether it can map a window: by trying."""

    spec: WindowSpec
    update: Update | None
    token: bytes
    path: str | None
    host: str
    unshared: str | None


@dataclass(frozen=True)
class ShardStatus:
    """What a shard says of a running fit.

    Attributes
    ----------
    closed : int
        Epochs closed.
    stop : int
        0 while running.
    records : (k, RECORD_WIDTH + n_ranks) float64 array
        Records of closed epochs from the one asked for.
    progress : tuple of tuple of int
        Counters of each rank, which change while it gets on or waits for others.
    steps : tuple of int
        Sequence number of each rank's last gradient.
    """

    closed: int
    stop: int
    records: NDArray[np.float64]
    progress: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]


class ParameterShard:
    """A slice of the parameters on a Dask Actor.

    Parameters
    ----------
    spec : ShardSpec
    """

    def __init__(self, spec: ShardSpec) -> None:
        sweep()
        window = self.window = Window.create(spec.window, update=spec.update, shared=spec.shared)
        announce(window)
        self._end = spec.end
        values = spec.initial.values()
        if spec.window.holds_parameters:
            window.params[:] = values[0]
            window.state[:] = values[1:]
        # What a fit that closes no epoch ends with.
        keep_snapshot(window, 0, values[0], values[1:], spec.version)
        window.words.store(Word.VERSION, spec.version)
        window.words.store(Word.SETTLED_VERSION, spec.version)
        self._timeout = spec.timeout
        self._abandon = weakref.finalize(self, window.close)

    def card(self) -> WindowCard:
        """How to map this window."""
        file = self.window.file
        path = str(file.path) if file else None
        window = self.window
        return WindowCard(
            window.spec, window.update, window.token, path, host_id(), window.unshared
        )

    def status(self, since: int) -> ShardStatus:
        """Records from epoch `since` on, and where every rank is."""
        window = self.window
        ranks = range(window.spec.n_ranks)
        closed = window.words.load(Word.CLOSED)
        rows = [epoch % window.spec.history for epoch in range(since, closed)]
        return ShardStatus(
            closed=closed,
            stop=window.stopped,
            records=window.history[rows],
            progress=tuple(
                (
                    *window.progress(rank),
                    window.words.rank_load(rank, Field.WAITS),
                    int(window.activity[rank, STEPS]),
                )
                for rank in ranks
            ),
            steps=tuple(
                window.words.rank_load(rank, Field.ARRIVED)
                if rank in window.spec.active
                else int(window.activity[rank, STEPS])
                for rank in ranks
            ),
        )

    def snapshot(self, epochs: int) -> tuple[NDArray[np.floating], int]:
        """Parameters and state, (1 + state_rows, n), after some epochs; and their version.

        Raises
        ------
        LookupError
            That snapshot is not, or no longer, there.
        """
        return read_snapshot(self.window, epochs)

    def stop(self) -> None:
        """End the fit for every replica."""
        self.window.stop(ABORTED)

    def close(self) -> None:
        """Stop the fit and give the window back."""
        self._abandon()
