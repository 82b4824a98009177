"""Async that reduces a stale gradient, or corrects it for the current parameters.

By age (Zhang, Gupta, Lian and Liu 2016): the learning rate of an update is divided by the updates
that it misses, where these are more than one. By delay (DC-ASGD, Zheng et al. 2017):
``g + strength g g (w_now - w_pulled)`` takes the place of the mean gradient g.

The protocols are those of async and of a bound (bounded.pyx), which may be without one. Each rank's
channel keeps what compensation needs to itself: what the rank has pulled last from this shard lies
beside the channel, which is in the rank's process where the window is mapped, and at the shard
where the rank is far. So nothing more crosses a wire, and nothing more is left by a crash. A push
waits for its answer, so that what was pulled last is what the gradient was computed from.

A gradient's age is that of its shard: updates there before it, less those that the parameters were
known to hold. What is now is read as all reads are in async, while others may write.
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy

import numpy as np

from dps._kernels.buffer cimport Buffer
from dps._kernels.delayed cimport compensate
from dps._kernels.optimizers cimport UNTRAINED
from dps._runtime.modes.bounded cimport BoundedChannel
from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.wire.message cimport RAN


cdef class AgedChannel(BoundedChannel):
    """A rank's channel to a shard that divides steps by their age."""

    cdef double age(self, int64_t step) noexcept nogil:
        """Return the factor of the gradient of update ``step``; one if it misses no update."""
        return <double> max(<int64_t> 1, step - 1 - self.request.based)

    cdef bint apply_slot(self, int64_t step) except -1 nogil:
        cdef double rate = self.request.rate, age = self.age(step)
        cdef bint finite
        if self.by_keys():
            self.keyed.update.lazy.age = age
        self.request.rate = rate / age
        finite = BoundedChannel.apply_slot(self, step)
        self.request.rate = rate
        if self.by_keys():
            self.keyed.update.lazy.age = 1
        return finite


cdef class DelayedChannel(BoundedChannel):
    """A rank's channel to a shard that corrects stale gradients; `strength` is lambda."""

    cdef readonly double strength
    cdef Buffer pulled  # the rank's last pull; by keys in their order
    cdef Py_ssize_t n_runs
    cdef const int64_t* runs  # (n_runs, 2) first and end of trained coordinates

    def __init__(self, window, *given, max_delay, double strength):
        BoundedChannel.__init__(self, window, *given, max_delay=max_delay)
        self.strength = strength
        self.pulled = Buffer()
        if not self.key_width:
            memcpy(
                self.pulled.fit(self.size * self.numbers.itemsize), self.params,
                self.size * self.numbers.itemsize,
            )
        trained = [run[:2] for run in window.store.update.segments if run[2] != UNTRAINED]
        self.n_runs = len(trained)
        self.runs = <const int64_t*> self.keep(np.array(trained, np.int64).reshape(-1, 2))

    cdef int give(self, const char* part, char* taken) noexcept nogil:
        # The copy equals the values that were sent, even if another rank writes meanwhile.
        if part == <const char*> self.params and not self.key_width:
            memcpy(self.pulled.at, part, self.size * self.numbers.itemsize)
            part = self.pulled.at
        return BoundedChannel.give(self, part, taken)

    cdef int gather_keys(self, int64_t now, char* taken) except -1 nogil:
        cdef Py_ssize_t n = self.picks.n * self.key_bytes
        BoundedChannel.gather_keys(self, now, NULL)
        memcpy(self.pulled.fit(n), self.values.at, n)
        if taken is NULL:
            return self.answer_with(self.pulled.at, n)
        if self.picks.at is NULL:
            memcpy(taken, self.pulled.at, n)
        else:
            self.numbers.scatter(
                taken, self.pulled.at, self.picks.at, self.picks.n, self.key_width
            )
        return RAN

    cdef void _compensate(self, char* mean, char* now, Py_ssize_t at, Py_ssize_t n) noexcept nogil:
        if self.numbers.single:
            compensate(
                <float*> mean + at, <float*> now + at, <float*> self.pulled.at + at, n,
                self.strength,
            )
        else:
            compensate(
                <double*> mean + at, <double*> now + at, <double*> self.pulled.at + at, n,
                self.strength,
            )

    cdef bint apply_slot(self, int64_t step) except -1 nogil:
        cdef char* mean = self.own_slot()
        cdef Py_ssize_t r
        if self.by_keys():
            # The keys are those of the last pull, in its order; untrained tensors have none.
            MappedChannel.gather_keys(self, step - 1, NULL)
            self._compensate(mean, self.values.at, 0, self.picks.n * self.key_width)
        else:
            for r in range(self.n_runs):
                self._compensate(
                    mean, self.params, self.runs[2 * r], self.runs[2 * r + 1] - self.runs[2 * r]
                )
        return BoundedChannel.apply_slot(self, step)
