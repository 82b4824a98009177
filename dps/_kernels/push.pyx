"""Pushes of the three modes on mapped windows, for loops without the interpreter.

Owns nothing: it is the twin of the operations in dps/modes and dps/server/operations.py, in the
same order of writes and with the same bits; their docstrings are the protocol. It must not know
models or data. A wait spins and sleeps here for a tick; then ``until(shard, field, word,
value)`` goes on in Python, which knows deadlines and owners.
"""
from cython cimport floating
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import numpy as np

from dps._kernels.activity cimport PULL, PUSH
from dps._kernels.optimizers cimport UpdateKernel, update
from dps._kernels.reduce cimport BLOCK, copy_checked, divide_by, is_finite, sum_slots
from dps._kernels.window cimport (
    Header, Words, add, is_ready, load, rank_load, rank_store, store, wait_for
)

# How a push ended, for the interpreter.
ENDINGS = {PUSHED: "ran", BAD_GRADIENT: "gradient", BAD_UPDATE: "update", STOPPED: "stopped"}


cdef bint _deliver(const Shard* shard, const floating* grad, floating* out) noexcept nogil:
    """Copy the shard's part of a gradient; whether it is finite."""
    cdef Py_ssize_t r, n
    cdef bint finite = True
    for r in range(shard.n_ranges):
        n = shard.ranges[2 * r + 1] - shard.ranges[2 * r]
        finite &= copy_checked(out, grad + shard.ranges[2 * r], n)
        out += n
    return finite


cdef void _put(const Shard* shard, const floating* part, floating* flat) noexcept nogil:
    """Copy the shard's part into the whole vector."""
    cdef Py_ssize_t r, n
    for r in range(shard.n_ranges):
        n = shard.ranges[2 * r + 1] - shard.ranges[2 * r]
        memcpy(flat + shard.ranges[2 * r], part, n * sizeof(floating))
        part += n


cdef bint _apply(
    const Segments* how, floating* params, const floating* mean, floating* state,
    Py_ssize_t stride, Py_ssize_t start, Py_ssize_t stop, int64_t step, double rate,
) noexcept nogil:
    """Update params[start:stop] by mean[:stop - start]; whether all are finite."""
    cdef Py_ssize_t i, a, b
    cdef bint finite = True, penalised
    for i in range(how.count):
        a = max(<Py_ssize_t> how.runs[3 * i], start)
        b = min(<Py_ssize_t> how.runs[3 * i + 1], stop)
        penalised = how.runs[3 * i + 2] != 0
        if a < b:
            finite &= update(
                &how.spec, params + a, mean + (a - start), state + a, stride, b - a, step, rate,
                how.l1 if penalised else 0.0, how.l2 if penalised else 0.0,
            )
    return finite


cdef int _fill(const Shard* shard, int rank, const floating* grad) noexcept nogil:
    cdef floating* slot = <floating*> shard.slots + rank * shard.slot_stride
    return PUSHED if _deliver(shard, grad, slot) else BAD_GRADIENT


cdef int _hand_over(const Shard* shard, int rank, const floating* grad) noexcept nogil:
    """Fill the slot, or look at what need not be there."""
    cdef const floating* own = _own(shard, grad)
    if own is NULL:
        return _fill(shard, rank, grad)
    return PUSHED if is_finite(own, shard.size) else BAD_GRADIENT


cdef const floating* _own(const Shard* shard, const floating* grad) noexcept nogil:
    """The gradient, where this rank is the only one and need not put it in its slot; or NULL."""
    if shard.words.n_ranks == 1 and shard.n_ranges == 1:
        return grad + shard.ranges[0]
    return NULL


cdef void _mean(
    const Shard* shard, const floating* grad, Py_ssize_t first, Py_ssize_t n, int64_t total
) noexcept nogil:
    """Put elements first .. first + n of the mean into scratch."""
    cdef const floating* own = _own(shard, grad)
    cdef const floating* slots = <const floating*> shard.slots
    sum_slots(
        (own if own is not NULL else slots) + first, shard.slot_stride, shard.counts,
        shard.words.n_ranks, <floating*> shard.scratch, n, <floating> total,
    )


cdef char* _address(array) except? NULL:
    return <char*> <uintptr_t> array.ctypes.data


cdef class Push:
    """A rank's pushes to all shards.

    Parameters
    ----------
    rank : int
    params : (size,) array
        Where the parameters are, or come to lie after each push.
    shards : sequence of dict
        Of each shard its ``header``, ``size``, ``ranges`` and, as arrays of the window, ``params``,
        ``state``, ``slots`` and ``total``; ``slice`` is the part that the rank works on, and
        ``update`` is ``(kernel, l1, l2, runs)``.
    places : dict
        Numbers of the words.
    sequence, version : int
        Pushes so far, and the version that the parameters have.
    tick : float
        Seconds after which a wait goes on in ``until``.
    until : callable
    activity : Activity
        Where waits, pushes and what they are stale by are counted; who calls `push` gives it the
        time up to the call, and from the last lap on.
    """

    def __init__(
        self, int rank, params, shards, dict places, sequence, version, double tick, until,
        activity,
    ):
        cdef Shard* shard
        free(self.shards)  # of an earlier call
        self._arrays = [params]
        self.rank = rank
        self.sequence = sequence
        self.version = version
        self.size = params.shape[0]
        self.single = params.dtype.itemsize == 4
        self.params = _address(params)
        self.tick = tick
        self.until = until
        self.activity = activity
        self.places = places
        self.n_shards = len(shards)
        self.shards = <Shard*> calloc(self.n_shards, sizeof(Shard))
        if self.shards is NULL:
            raise MemoryError
        for number, of in enumerate(shards):
            shard = &self.shards[number]
            shard.words = (<Header?> of["header"]).words
            shard.size = of["size"]
            shard.ranges = <const int64_t*> self._keep(np.array(of["ranges"], np.int64))
            shard.n_ranges = len(of["ranges"])
            shard.params = self._keep(of["params"])
            shard.state = self._keep(of["state"])
            shard.slots = self._keep(of["slots"])
            shard.slot_stride = of["slots"].shape[1]
            shard.total = self._keep(of["total"])
            shard.start, shard.stop = of["slice"]
            shard.scratch = self._keep(np.empty(BLOCK, params.dtype))
            shard.counts = <int64_t*> self._keep(np.zeros(shard.words.n_ranks, np.int64))
            self._bind(&shard.update, of["update"])
            self._arrays.append(of["header"])

    def __dealloc__(self):
        free(self.shards)

    cdef char* _keep(self, array) except? NULL:
        self._arrays.append(array)
        return _address(array)

    cdef int _bind(self, Segments* segments, how) except -1:
        kernel, segments.l1, segments.l2, runs = how
        segments.spec = (<UpdateKernel?> kernel).spec
        segments.runs = <const int64_t*> self._keep(np.array(runs, np.int64))
        segments.count = len(runs)
        return 0

    def staleness(self):
        """Sum and largest staleness since the last call."""
        result = self.stale_sum, self.stale_max
        self.stale_sum = self.stale_max = 0
        return result

    cdef int wait(self, int shard, int field, int word, int64_t value) except -1 nogil:
        cdef const Words* words = &self.shards[shard].words
        cdef int64_t known, began
        if is_ready(words, field, word, value):  # who comes last reads no clock
            return 0
        known, began = self.activity.waited_so_far(), self.activity.wait_begins()
        if wait_for(words, field, word, value, self.tick) != 0:
            with gil:
                self.until(shard, field, word, value)
        self.activity.wait_ends(began, known)
        return 0

    cdef int pull(self, Py_ssize_t first) except -1 nogil:
        """Put the parameters at the keys from ``first`` on into ``params``."""
        return STOPPED

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        return STOPPED

    cdef int _enter(self) except -1 nogil:
        """Begin to touch shards where nobody waits, once no snapshot wants quiet."""
        cdef Shard* ledger = &self.shards[0]
        while True:
            if load(&ledger.words, self.places.stop) != 0:
                return STOPPED
            rank_store(&ledger.words, self.rank, self.places.free, 0)
            if load(&ledger.words, self.places.open) != 0:
                return PUSHED
            rank_store(&ledger.words, self.rank, self.places.free, 1)
            self.wait(0, -1, self.places.open, 1)

    cdef int _arrive(self, const char* grad, int64_t rows) noexcept nogil:
        """Fill this rank's slots, then say so: the first half of `operations.exchange`.

        Where there is one rank nobody reads its slot, and it stays as it is.
        """
        cdef int number, status
        cdef Shard* shard
        for number in range(self.n_shards):
            shard = &self.shards[number]
            if load(&shard.words, self.places.stop) != 0:
                return STOPPED
            if self.single:
                status = _hand_over(shard, self.rank, <const float*> grad)
            else:
                status = _hand_over(shard, self.rank, <const double*> grad)
            if status != PUSHED:
                return status
            self.activity.push(number, shard.size * (4 if self.single else 8))
            rank_store(&shard.words, self.rank, self.places.rows, rows)
            rank_store(&shard.words, self.rank, self.places.arrived, self.sequence)
        return PUSHED

    cdef int64_t _await(self, int number) except -1 nogil:
        """Wait for the gradients of all ranks; the rows behind them."""
        cdef Shard* shard = &self.shards[number]
        cdef int64_t total = 0
        cdef int rank
        self.wait(number, self.places.arrived, 0, self.sequence)
        for rank in range(shard.words.n_ranks):
            shard.counts[rank] = rank_load(&shard.words, rank, self.places.rows)
            total += shard.counts[rank]
        return total

    cdef void _mean(
        self, const Shard* shard, const char* grad, Py_ssize_t first, Py_ssize_t n, int64_t total
    ) noexcept nogil:
        """Put n elements of the mean, from one on, into scratch."""
        if self.single:
            _mean(shard, <const float*> grad, first, n, total)
        else:
            _mean(shard, <const double*> grad, first, n, total)

    cdef bint _update(
        self, const Segments* how, char* params, const char* mean, char* state, Py_ssize_t stride,
        Py_ssize_t start, Py_ssize_t stop, int64_t step, double rate,
    ) noexcept nogil:
        if self.single:
            return _apply(
                how, <float*> params, <const float*> mean, <float*> state, stride, start, stop,
                step, rate,
            )
        return _apply(
            how, <double*> params, <const double*> mean, <double*> state, stride, start, stop,
            step, rate,
        )

    cdef bint _give_out(self, const Shard* shard, const char* flat, char* part) noexcept nogil:
        """Copy the shard's part of a whole vector; whether it is finite."""
        if self.single:
            return _deliver(shard, <const float*> flat, <float*> part)
        return _deliver(shard, <const double*> flat, <double*> part)

    cdef void _take_in(self, const Shard* shard, const char* part, char* flat) noexcept nogil:
        if part == flat:
            return
        if self.single:
            _put(shard, <const float*> part, <float*> flat)
        else:
            _put(shard, <const double*> part, <double*> flat)


cdef class ExchangePush(Push):
    """Twin of `operations.exchange` on every shard; kinds differ in the use of their slice."""

    cdef bint _use(
        self, Shard* shard, Py_ssize_t first, Py_ssize_t last, int64_t step, double rate
    ) noexcept nogil:
        """Use elements first .. last of the mean, in scratch; whether all is finite.

        Here they are put where all ranks find them.
        """
        cdef Py_ssize_t itemsize = 4 if self.single else 8
        memcpy(shard.total + first * itemsize, shard.scratch, (last - first) * itemsize)
        return True

    cdef void _stepped(self, Shard* shard, int64_t step) noexcept nogil:
        """This rank has used its slice."""
        if self.rank == 0:
            store(&shard.words, self.places.version, step)

    cdef void _finish(self, int number) noexcept nogil:
        """Read what all ranks have made of the shard."""

    cdef int _settle(self, int number) except -1 nogil:
        """This rank is done with a shard: wait until all are, and read it."""
        rank_store(&self.shards[number].words, self.rank, self.places.done, self.sequence)
        self.wait(number, self.places.done, 0, self.sequence)
        self._finish(number)
        if number + 1 < self.n_shards:
            self.activity.spend(PUSH, number)
        return 0

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        cdef int number, status
        cdef Shard* shard
        cdef int64_t step, total
        cdef Py_ssize_t first, last
        cdef bint good
        self.sequence += 1
        step = self.version + self.sequence
        status = self._arrive(grad, rows)
        if status != PUSHED:
            return status
        for number in range(self.n_shards):
            shard = &self.shards[number]
            total = self._await(number)
            good = True
            first = shard.start
            while first < shard.stop:  # what has become of the gradients stays in cache
                last = min(first + BLOCK, shard.stop)
                self._mean(shard, grad, first, last - first, total)
                good &= self._use(shard, first, last, step, rate)
                first = last
            if not good:
                return BAD_UPDATE
            self._stepped(shard, step)
            self._settle(number)
        return PUSHED


cdef class SynchronousPush(ExchangePush):
    """Twin of dps.modes.synchronous; with one shard ``params`` may be the window's own."""

    cdef bint _use(
        self, Shard* shard, Py_ssize_t first, Py_ssize_t last, int64_t step, double rate
    ) noexcept nogil:
        return self._update(
            &shard.update, shard.params, shard.scratch, shard.state, shard.size, first, last, step,
            rate,
        )

    cdef void _finish(self, int number) noexcept nogil:
        cdef Shard* shard = &self.shards[number]
        if shard.params != self.params:
            self.activity.spend(PUSH, number)
            self._take_in(shard, shard.params, self.params)
            self.activity.spend(PULL, -1)


cdef class AllReducePush(ExchangePush):
    """Twin of dps.modes.allreduce; ``held`` is its copy of params and state, row by row."""

    cdef Segments held
    cdef char* state
    cdef char* mean

    def __init__(self, *args, held, how):
        super().__init__(*args)
        self.state = self._keep(held[1:])
        self.mean = self._keep(np.empty(self.size, held.dtype))
        self._bind(&self.held, how)

    cdef void _finish(self, int number) noexcept nogil:
        self._take_in(&self.shards[number], self.shards[number].total, self.mean)

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        cdef int status = ExchangePush.push(self, grad, rows, rate)
        if status == PUSHED and not self._update(
            &self.held, self.params, self.mean, self.state, self.size, 0, self.size,
            self.version + self.sequence, rate,
        ):
            return BAD_UPDATE
        return status


cdef class AsynchronousPush(Push):
    """Twin of dps.modes.asynchronous; ``params`` is this rank's copy, ``versions`` its shards'."""

    def __init__(self, *args, versions):
        cdef int number
        super().__init__(*args)
        for number in range(self.n_shards):
            self.shards[number].based = versions[number]

    @property
    def versions(self):
        """The version of each shard that the parameters have."""
        return [self.shards[number].based for number in range(self.n_shards)]

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        cdef int number, status
        if rows == 0:
            return PUSHED
        self.sequence += 1
        status = self._enter()
        for number in range(self.n_shards):
            if status == PUSHED:
                status = self._push_to(number, grad, rows, rate)
        if status == PUSHED:
            rank_store(&self.shards[0].words, self.rank, self.places.free, 1)
        return status

    cdef int _push_to(self, int number, const char* grad, int64_t rows, double rate) noexcept nogil:
        cdef Shard* shard = &self.shards[number]
        cdef Py_ssize_t itemsize = 4 if self.single else 8
        cdef char* slot = shard.slots + self.rank * shard.slot_stride * itemsize
        cdef int status
        cdef int64_t step
        if self.single:
            status = _fill(shard, self.rank, <const float*> grad)
            divide_by(<float*> slot, <float> <double> rows, shard.size)
        else:
            status = _fill(shard, self.rank, <const double*> grad)
            divide_by(<double*> slot, <double> rows, shard.size)
        if status != PUSHED:
            return status
        self.activity.push(number, shard.size * itemsize)
        step = add(&shard.words, self.places.version, 1)
        if not self._update(
            &shard.update, shard.params, slot, shard.state, shard.size, 0, shard.size, step, rate
        ):
            return BAD_UPDATE
        rank_store(&shard.words, self.rank, self.places.arrived, self.sequence)
        self.activity.age(number, step - 1 - shard.based)
        if number == 0:
            self.stale_sum += <double> (step - 1 - shard.based)
            self.stale_max = max(self.stale_max, <double> (step - 1 - shard.based))
        shard.based = load(&shard.words, self.places.version)
        self.activity.spend(PUSH, number)
        self._take_in(shard, shard.params, self.params)
        self.activity.spend(PULL, -1)
        return PUSHED
