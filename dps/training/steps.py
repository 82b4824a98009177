"""The steps of a replica's epochs: batches in, gradients out.

The loop exists twice, with the same bits: in Python, for any model and any channel, and
in a kernel, for models, optimizers and channels that have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dps._kernels.activity import COMPUTE, LOAD, PULL, PUSH
from dps._kernels.keyed_push import KeyedPush
from dps._kernels.keys import KeyList
from dps._kernels.push import Push
from dps._kernels.rows import BlockRows, Gradient
from dps._kernels.steps import StepLoop
from dps.data.batches import Batches
from dps.data.blocks import Segment
from dps.errors import NonFiniteError, StoppedError
from dps.models import Model
from dps.modes import Channel
from dps.optimizers import Schedule
from dps.optimizers.update import Rates

__all__ = [
    "NativeKeyedSteps",
    "NativeSteps",
    "PythonKeyedSteps",
    "PythonSteps",
    "Steps",
    "steps_of",
]


class Steps(Protocol):
    """A replica's steps, epoch by epoch."""

    def epoch(self, number: int) -> tuple[float, int, int]:
        """Take all steps of an epoch.

        Parameters
        ----------
        number : int
            Epochs that lie before it, in this fit and those that it carries on.

        Returns
        -------
        loss : float
            Sum of the losses of its rows.
        rows, pushes : int
            Rows seen, and gradients handed over that had rows behind them.

        Raises
        ------
        NonFiniteError, StoppedError
        """
        ...


def steps_of(
    model: Model, channel: Channel, batches: Batches, schedule: Schedule, rates: Rates | None
) -> Steps:
    """Steps without the interpreter where model and channel allow it, by keys given their rates."""
    channel.pull()
    kernel = model.kernel
    if rates is not None:
        assert kernel is not None
        keyed = channel.native_keyed()
        if keyed is None:
            return PythonKeyedSteps(model, kernel, channel, batches, rates)
        return NativeKeyedSteps(kernel, keyed, channel, batches, rates)
    push = None if kernel is None else channel.native()
    if kernel is None or push is None:
        return PythonSteps(model, channel, batches)
    return NativeSteps(kernel, push, channel, batches, schedule)


class PythonSteps:
    """The loop in Python.

    Parameters
    ----------
    model : Model
    channel : Channel
    batches : Batches
    """

    def __init__(self, model: Model, channel: Channel, batches: Batches) -> None:
        self._model = model
        self._channel = channel
        self._batches = batches

    def epoch(self, number: int) -> tuple[float, int, int]:
        """Take all steps of an epoch, see :meth:`Steps.epoch`."""
        activity = self._channel.activity
        params = self._channel.pull()
        activity.lap(PULL)
        grad, steps = np.zeros_like(params), self._batches.steps
        loss_sum = 0.0
        seen = pushes = 0
        with closing(self._batches.epoch(number)) as batches:
            for step, (rows, segments) in enumerate(batches):
                activity.lap(LOAD)
                grad.fill(0)
                loss_sum = self._add(params, segments, grad, loss_sum)
                seen += rows
                pushes += rows > 0
                activity.lap(COMPUTE)
                params = self._channel.push_pull(grad, rows, number + step / steps)
                activity.lap(PUSH)
                activity.stepped(rows, seen, loss_sum)
        return loss_sum, seen, pushes

    def _add(
        self,
        params: NDArray[np.floating],
        segments: Sequence[Segment],
        grad: NDArray[np.floating],
        loss_sum: float,
    ) -> float:
        """Add the gradient of a batch to `grad`; the sum of losses with those of the batch."""
        for segment in segments:
            loss_sum += self._model.loss_gradient(
                params, segment.X, segment.y, segment.weight, out=grad
            )
        if loss_sum - loss_sum != 0:
            raise NonFiniteError.of("loss", step=self._channel.steps + 1)
        return loss_sum


class PythonKeyedSteps(PythonSteps):
    """The loop in Python for sparse gradients: batches pull and push what they touch.

    Parameters
    ----------
    model : Model
    kernel : Gradient
        The model's; it says what a batch touches.
    channel : Channel
    batches : Batches
    rates : Rates
    """

    def __init__(
        self, model: Model, kernel: Gradient, channel: Channel, batches: Batches, rates: Rates
    ) -> None:
        super().__init__(model, channel, batches)
        self._kernel = kernel
        self._rates = rates
        self._touched = KeyList(kernel.size)
        self._params = np.zeros(kernel.size, model.dtype)
        self._grad = np.zeros(kernel.size, model.dtype)

    def epoch(self, number: int) -> tuple[float, int, int]:
        """Take all steps of an epoch, see :meth:`Steps.epoch`."""
        params, grad = self._params, self._grad
        epoch = number - self._rates.epochs
        activity = self._channel.activity
        loss_sum = 0.0
        seen = pushes = 0
        with closing(self._batches.epoch(number)) as batches:
            for step, (rows, segments) in enumerate(batches):
                activity.lap(LOAD)
                keys = self._keys(segments)
                activity.lap(COMPUTE)
                params[keys] = self._channel.pull_keys(keys, epoch, step)
                activity.lap(PULL)
                grad[keys] = 0
                loss_sum = self._add(params, segments, grad, loss_sum)
                seen += rows
                pushes += rows > 0
                activity.lap(COMPUTE)
                self._channel.push_keys(grad[keys], keys, rows, epoch, step + 1)
                activity.lap(PUSH)
                activity.stepped(rows, seen, loss_sum)
        return loss_sum, seen, pushes

    def _keys(self, segments: Sequence[Segment]) -> NDArray[np.int32]:
        """What a batch touches, sorted: equal sets are equal lists."""
        self._touched.begin()
        for segment in segments:
            block = segment.X.block(segment.y, segment.weight)
            self._kernel.touched(block, segment.X.order, 0, len(segment.X), self._touched)
        return np.sort(self._touched.array())


class NativeSteps:
    """The loop in a kernel, entered once a group of blocks.

    Parameters
    ----------
    gradient : Gradient
    push : Push
    channel : Channel
        What `push` is of.
    batches : Batches
    schedule : Schedule
    """

    def __init__(
        self,
        gradient: Gradient,
        push: Push,
        channel: Channel,
        batches: Batches,
        schedule: Schedule,
    ) -> None:
        self._loop = StepLoop(gradient, push)
        self._push = push
        self._channel = channel
        self._batches = batches
        self._schedule = schedule

    def epoch(self, number: int) -> tuple[float, int, int]:
        """Take all steps of an epoch, see :meth:`Steps.epoch`."""
        loop, steps = self._loop, self._batches.steps
        rates = [self._schedule(number + step / steps) for step in range(steps)]
        loop.begin(self._batches.source.rows, np.array(rates, np.float64))
        with closing(self._batches.source.groups(number)) as groups:
            for group in groups:
                self._run([part.for_kernels() for part in group])
                group.clear()  # it may take as much memory as the next one, which is waited for
        self._run([])  # steps without rows
        assert loop.done
        return loop.loss, loop.seen, loop.pushes

    def _run(self, group: list[tuple[BlockRows, NDArray[np.int64] | None, int, int]]) -> None:
        self._channel.activity.lap(LOAD)
        try:
            ending = self._loop.run(group)
        finally:
            self._channel.follow(self._push)
        if ending == "stopped":
            raise StoppedError("the fit was stopped")
        if ending != "ran":
            # A loss is looked at before its gradient is counted.
            step = self._channel.steps + (ending == "loss")
            raise NonFiniteError.of(ending, step=step)


class NativeKeyedSteps(NativeSteps):
    """The loop in a kernel for sparse gradients.

    Parameters
    ----------
    gradient : Gradient
    push : KeyedPush
    channel : Channel
        What `push` is of.
    batches : Batches
    rates : Rates
    """

    def __init__(
        self,
        gradient: Gradient,
        push: KeyedPush,
        channel: Channel,
        batches: Batches,
        rates: Rates,
    ) -> None:
        super().__init__(gradient, push, channel, batches, rates.schedule)
        self._keyed = push
        self._rates = rates

    def epoch(self, number: int) -> tuple[float, int, int]:
        """Take all steps of an epoch, see :meth:`Steps.epoch`."""
        self._keyed.begin(self._rates, number - self._rates.epochs)
        return super().epoch(number)
