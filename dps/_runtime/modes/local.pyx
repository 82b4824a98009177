"""Local steps: every rank trains its own copy, and copies are averaged now and then.

A rank applies the mean gradient of its own part of a batch to its copy, and sends nothing. After
every ``period`` steps, and after the last one of an epoch, ranks average their copies: ::

    D = sum_r n_r (base - params_r) / sum_r n_r     n_r the rows that rank r has taken since
    base = outer update of base by D                params_r = base

``base`` is what all copies were after the last reduction, the same bits on all ranks; so are D, the
state of the outer optimizer, and what comes of it. With plain gradient descent of rate 1 outside,
``base - D`` is the mean of the copies (local SGD); with Nesterov momentum it is DiLoCo.

Protocol. A reduction is one exchange of an all-reduce (mapped.pyx, ring.pyx), made by the very
step that a rank would take at each batch (``reduction``): the same barriers, sums by hosts, and the
same consequences of a crash. Exchanges and local steps are numbered apart: a local step is an
update (`sequence`, by which learning rates and lazy updates count), an exchange is not. Between two
reductions a rank sends heartbeats (BEAT), so that ranks that wait for it know it from one that
hangs. A rank that dies leaves the others waiting at the next reduction until the fit is stopped;
only the snapshot of the last closed epoch counts, and that is of a time when all copies were equal.

The inner optimizer's state stays a rank's own between the reductions of an epoch. After the last
one it is averaged, too, so that a snapshot has one state, which does not depend on who took it.
The states cross with all their bits, also where the copies cross as bfloat16.

By keys a local step touches what its batch touches. A reduction is of whole vectors: before it,
each copy has been brought up to date everywhere, since penalties and momentum move what no
batch touches.
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from dataclasses import replace

import numpy as np

from dps._kernels.buffer cimport Buffer
from dps._kernels.displaced cimport displaced, multiplied
from dps._kernels.optimizers cimport UNTRAINED
from dps._runtime.shared.activity cimport COMPUTE
from dps._runtime.modes.allreduce cimport AllReduceStep
from dps._runtime.channel.base cimport ShardChannel
from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.wire.message cimport BAD_GRADIENT, BAD_UPDATE, FULL, PUSH, RAN, STOPPED
from dps._runtime.updates cimport BoundUpdate
from dps._runtime.shared.words cimport W_STOP, load

from dps._runtime.updates import bind


cdef class LocalStep(AllReduceStep):
    """A rank's local steps.

    rank, channels, held, total, version, activity, update, host: as of an `AllReduceStep`.
    reduction: over the same channels, of whole vectors.
    period: steps from one reduction to the next.
    rate: its learning rate.
    """

    cdef AllReduceStep reduction
    cdef int64_t period
    cdef int64_t synchronised  # the step after which copies were last averaged
    cdef int64_t rows  # rows since then
    cdef int64_t epoch_rows
    cdef int64_t reductions
    cdef bint alone
    cdef BoundUpdate outer
    cdef double rate
    cdef char* outer_state
    cdef char* base  # the common copy at that time
    cdef char* given  # the values for the other ranks
    cdef Py_ssize_t state_rows
    cdef Buffer part                # of a gradient by keys
    cdef const int64_t* runs        # (n_runs, 3) of elements, with their kinds
    cdef Py_ssize_t n_runs

    def __init__(
        self, rank, channels, held, total, version, activity, update, host, AllReduceStep reduction,
        int64_t period, outer, double rate,
    ):
        AllReduceStep.__init__(self, rank, channels, held, total, version, activity, update, host)
        self.reduction, self.period, self.rate = reduction, period, rate
        # A single copy is its own mean, bit for bit.
        self.alone = channels[0].n_ranks == 1 and outer.state_rows == 0
        free = replace(update, optimizer=outer, l1=0.0, l2=0.0, rates=None)
        self.outer = bind(free, held.dtype, self.size, self._refs)
        self.outer_state = self.keep(np.zeros((outer.state_rows, self.size), held.dtype))
        self.base = self.keep(held[0].copy())
        self.given = self.keep(np.empty(self.size, held.dtype))
        self.state_rows = len(held) - 1
        self.part = Buffer()
        runs = np.array(update.segments, np.int64).reshape(-1, 3)
        self.runs, self.n_runs = <const int64_t*> self.keep(runs), len(runs)

    cdef bint _stopped(self) noexcept nogil:
        """True if this rank can see that the fit was stopped."""
        cdef int number
        for number in range(self.n_shards):
            if not (<ShardChannel> self._channels[number]).far:
                if load(&(<MappedChannel> self._channels[number]).words, W_STOP) != 0:
                    return True
        return self.host is not None and load(&self.host.words, W_STOP) != 0

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        cdef bint last
        cdef int number, status, coding
        if self._stopped():
            return STOPPED
        self.sequence += 1
        status = self._step_here(grad, rows, rate)
        self.activity.spend(COMPUTE, -1)
        if status != RAN:
            return status
        self.rows += rows
        self.epoch_rows += rows
        last = self.sequence == self.way.last
        if last or self.sequence - self.synchronised == self.period:
            self.reduction.way.last = self.reduction.sequence + last
            status = self._synchronise()
            if status == RAN and last:
                coding, self.reduction.coding = self.reduction.coding, FULL
                status = self._average_state()
                self.reduction.coding = coding
            return status
        for number in range(self.n_shards):
            (<ShardChannel> self._channels[number]).heartbeat()
        if self.host is not None:
            self.host.heartbeat()
        return RAN

    cdef int _step_here(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        """Apply a gradient to the rank's own copy; without rows it is zero."""
        cdef int64_t now = self.version + self.sequence
        cdef Py_ssize_t n = self.size if self.keys is None else self.keys.keys.count
        cdef char* mean = self.means
        cdef bint finite
        if self.keys is not None:
            n *= self.key_map.width
            mean = self.part.fit(n * self.numbers.itemsize)
        if not self.numbers.copy_checked(mean, grad, n):
            return BAD_GRADIENT
        if rows > 1:
            self.numbers.divide(mean, <double> rows, n)
        if self.keys is None:
            finite = self.update.apply(
                self.params, mean, self.state, self.size, 0, self.size, now, rate
            )
        else:
            finite = self.keyed.apply(self.keys.keys.list, mean, self.keys.keys.count, now)
        return RAN if finite else BAD_UPDATE

    cdef int _synchronise(self) except -1 nogil:
        """Average the copies of all ranks."""
        cdef int status
        self.synchronised = self.sequence
        if self.keys is not None:
            if not self.keyed.flush(0, self.size, self.version + self.sequence):
                return BAD_UPDATE
        if not self.alone:
            displaced(
                self.numbers.single, self.base, self.params, <double> self.rows, self.given,
                self.size,
            )
            status = self._exchanged(self.rows, self.means)
            if status != RAN:
                return status
            self.reductions += 1
            if not self.outer.apply(
                self.base, self.means, self.outer_state, self.size, 0, self.size, self.reductions,
                self.rate,
            ):
                return BAD_UPDATE
            memcpy(self.params, self.base, self.size * self.numbers.itemsize)
        self.rows = 0
        return RAN

    cdef int _average_state(self) except -1 nogil:
        """Average the states of all ranks that have had rows in this epoch.

        Untrained tensors have no defined state.
        """
        cdef int64_t weight = self.epoch_rows > 0
        cdef Py_ssize_t itemsize = self.numbers.itemsize, _row, run, at, n
        cdef char* state = self.state
        cdef int status
        self.epoch_rows = 0
        if (<ShardChannel> self._channels[0]).n_ranks == 1:
            return RAN
        for _row in range(self.state_rows):
            multiplied(self.numbers.single, state, <double> weight, self.given, self.size)
            for run in range(self.n_runs):
                at, n = self.runs[3 * run], self.runs[3 * run + 1] - self.runs[3 * run]
                if self.runs[3 * run + 2] == UNTRAINED:
                    memset(self.given + at * itemsize, 0, n * itemsize)
            status = self._exchanged(weight, self.means)
            if status != RAN:
                return status
            for run in range(self.n_runs):
                at, n = self.runs[3 * run], self.runs[3 * run + 1] - self.runs[3 * run]
                if self.runs[3 * run + 2] != UNTRAINED:
                    memcpy(state + at * itemsize, self.means + at * itemsize, n * itemsize)
            state += self.size * itemsize
        return RAN

    cdef int _exchanged(self, int64_t rows, char* taken) except -1 nogil:
        """Return the sum of all ranks' vectors over the sum of their rows."""
        self.reduction.sequence += 1
        return self.reduction._exchange(PUSH, self.given, rows, 0, taken)
