"""The stochastic steps of a replica's epochs.

One compiled loop serves every model and mode, and is entered once per group of blocks. It calls
models that are written in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import numpy as np

from dps._kernels.rows import Gradient
from dps._runtime.loop import StepLoop
from dps._runtime.python import PythonGradient
from dps._runtime.shared.activity import LOAD, PUSH
from dps.data.feed.batches import Batches, Group
from dps.errors import NonFiniteError
from dps.models import Model
from dps.optimizers import Schedule
from dps.optimizers.update import Rates
from dps.training.replica.channel import Channel, raise_unless_ran

#: See :meth:`Steps.epoch`.
Pause = Callable[[int, float, int, int], int]


class ResumeAt(NamedTuple):
    """Progress of a rank in an epoch."""

    step: int = 0  # first step
    loss: float = 0.0  # sum of losses of earlier steps
    rows: int = 0
    pushes: int = 0
    seconds: float = 0.0


FROM_THE_START = ResumeAt()


def gradient_of(model: Model, most: int = 0) -> Gradient:
    """Return the gradient of a model: its kernel, or a wrapper of its Python method.

    most: rows that a model in Python gets at a time; 0: no limit.
    """
    return PythonGradient(model, most) if model.kernel is None else model.kernel


class Steps:
    """A replica's steps, epoch by epoch.

    rates: of lazy updates, for steps by keys.
    seed: for the model's random draws; different on each rank.
    """

    def __init__(
        self,
        model: Model,
        channel: Channel,
        batches: Batches,
        schedule: Schedule,
        rates: Rates | None,
        seed: tuple[int, ...] = (0,),
    ) -> None:
        if rates is None:  # by keys, each batch reads the parameters that it touches
            channel.pull()
        self._loop = StepLoop(gradient_of(model), channel.step)
        self._channel = channel
        self._batches = batches
        self._schedule = schedule
        self._rates = rates
        self._seed = seed

    @property
    def skipped(self) -> int:
        """Rows of the last epoch in steps that other ranks completed without this one."""
        return self._loop.skipped

    def epoch(
        self,
        number: int,
        until: int | None = None,
        pause: Pause | None = None,
        begun: ResumeAt = FROM_THE_START,
    ) -> tuple[float, int, int]:
        """Take the steps of an epoch, or the rest of them.

        number: epochs before it, in this fit and the fits that it continues.
        until: the step before which the rank pauses, or the number of steps for no pause.
        pause: called with the step, loss, rows and pushes so far; returns the step of the next
            pause.
        Returns the sum of the losses of its rows.
        Returns the rows used, and the number of pushed gradients of batches with rows. Raises
            NonFiniteError, StoppedError.
        """
        loop, steps = self._loop, self._batches.steps
        self._channel.step.plan_steps(steps - begun.step)
        if self._rates is not None:
            self._channel.step.begin_epoch(number - self._rates.epochs)
        if self._channel.step.needs_pull:
            self._channel.pull()
        rates = [self._schedule(number + step / steps) for step in range(steps)]
        key = int(np.random.SeedSequence((*self._seed, number)).generate_state(1, np.uint64)[0])
        loop.begin(self._batches.source.rows, np.array(rates, np.float64), key, *begun[:4])
        self._pause = pause
        loop.until = steps if until is None else until
        with closing(self._batches.source.groups(number)) as groups:
            for group in groups:
                self._run(group)
                group.clear()  # frees its memory before the next group, which may take as much
        self._run([])  # steps without rows
        assert loop.done
        self._channel.finish_steps()
        return loop.loss, loop.seen, loop.pushes

    def _run(self, group: Group) -> None:
        self._channel.activity.lap(LOAD)
        loop, parts = self._loop, [part.rest() for part in group]
        while True:
            ending = loop.run(parts)
            if ending == "loss":  # the loss is checked before its gradient is counted
                raise NonFiniteError.of("loss", step=self._channel.steps + 1)
            raise_unless_ran(ending, None, self._channel.steps)
            if loop.step < loop.until or loop.done:
                return
            assert self._pause is not None
            loop.until = self._pause(loop.step, loop.loss, loop.seen, loop.pushes)
            self._channel.activity.lap(PUSH)
            parts = loop.rest
