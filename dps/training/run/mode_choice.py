"""The measurement of a fit's first steps for ``mode="auto"``, and the change of mode.

The fit's own steps are measured in its first mode. ``modes/choosing.py`` chooses a mode from the
figures. A fit continues in another mode with a new generation, after the last closed epoch.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dps._runtime.shared.activity import COMPUTE, EPOCH_ROWS, PULL, PUSH, ROWS, STEPS, WAIT
from dps.cluster.base import Cluster
from dps.modes import Mode
from dps.modes.choosing import Choice, Figures, choose
from dps.server.group.session import Check, Session
from dps.training.job import Job
from dps.training.run.launch import Launch

_log = logging.getLogger("dps")

#: Least number of steps of each replica, and of seconds, that are measured.
_STEPS, _SECONDS = 5, 0.5


class Choosing:
    """The choice of a mode during a fit."""

    def __init__(self, asked: Mode) -> None:
        self._asked = asked
        self._chooses = asked.begins is not asked
        self._mode = asked.begins  # the current mode
        self._choice: Choice | None = None

    def first(self, job: Job) -> Job:
        """Return the job in its first mode, also after workers are lost or join."""
        self._mode = self._asked.begins
        self._choice = None
        if self._chooses and job.full_batch is not None:
            self._choice = Choice(self._mode, "L-BFGS takes the same steps in every mode")
        return replace(job, mode=self._mode)

    @property
    def said(self) -> str:
        """Why the fit is in its mode; empty if the user chose it."""
        if not self._chooses:
            return ""
        choice = self._choice
        if choice is None or choice.mode != self._mode:
            choice = Choice(self._mode, "the fit was over before a change was worth while")
        return choice.line()

    def begin(self, launch: Launch, session: Session, cluster: Cluster) -> None:
        """Begin to measure the steps of a generation."""
        self._job, self._plan, self._session = launch.job, launch.plan, session
        self._by_keys = launch.rates is not None
        self._began: tuple[NDArray[np.int64], float] | None = None
        self._rate = 0.0
        if self._is_open:
            self._hosts = len(set(cluster.hosts([rank.worker for rank in launch.plan.ranks])))

    def changed(self, job: Job) -> Job:
        """Return the job that continues in the chosen mode."""
        if self._choice is None or self._choice.mode == self._mode:
            return self.first(job)
        self._mode = self._choice.mode
        return replace(job, mode=self._mode)

    @property
    def _is_open(self) -> bool:
        """True while the fit may still change its mode."""
        return self._chooses and (self._choice is None or self._choice.mode != self._mode)

    def should_end(self, closed: int, check: Check | None = None) -> bool:
        """Read the replicas' counters; True if the generation should end now.

        closed: number of closed epochs of the fit.
        """
        if not self._is_open:
            return False
        counts = self._session.counts(check)[0]
        if self._choice is None:
            self._measure(counts, closed)
        if self._choice is None or not self._is_open:
            return False
        # The open epoch is repeated. That must cost less than the rest of it in this mode.
        done = int(counts[:, EPOCH_ROWS].sum())
        rest, saved = self._plan.rows - done, 1.0 - 1.0 / self._choice.gain
        return done <= max(rest * saved, self._rate * _SECONDS)

    def _measure(self, counts: NDArray[np.int64], closed: int) -> None:
        now = time.monotonic()
        if self._began is None:
            # The first step includes costs that later ones do not have.
            if counts[:, STEPS].min() > 0:
                self._began = counts, now
            return
        did, seconds = counts - self._began[0], now - self._began[1]
        if did[:, STEPS].min() < _STEPS or seconds < _SECONDS:
            return
        self._rate = int(did[:, ROWS].sum()) / seconds
        self._choice = choose(self._figures(did, closed), self._mode)
        _log.info("%s", self._choice.line())

    def _figures(self, did: NDArray[np.int64], closed: int) -> Figures:
        job, plan = self._job, self._plan

        def of(*phases: int) -> tuple[float, ...]:
            return tuple((did[:, list(phases)].sum(axis=1) / 1e9).tolist())

        epochs = job.stopping.max_iter - closed
        return Figures(
            rows=tuple(did[:, ROWS].tolist()),
            compute=of(COMPUTE),
            communicate=of(PULL, PUSH),
            wait=of(WAIT),
            hosts=self._hosts,
            by_keys=self._by_keys,
            table=job.model.layout.table is not None,
            epoch_rows=tuple(rank.rows for rank in plan.ranks),
            epoch_steps=max(rank.steps for rank in plan.ranks),
            left=epochs * plan.rows / self._rate,
        )
