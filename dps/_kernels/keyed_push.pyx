"""Pushes of sparse gradients in the three modes, for loops without the interpreter.

It is the twin of the operations by keys in dps/modes and dps/server/keyed.py, in the same order of
writes and with the same bits, on one mapped shard. It must not know models or data.
"""
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

import numpy as np

from dps._kernels.keys cimport KeyList, deliver, merge
from dps._kernels.lazy cimport LazyUpdate, apply, gather, settle
from dps._kernels.push cimport BAD_GRADIENT, BAD_UPDATE, PUSHED, STOPPED, Push, Shard
from dps._kernels.reduce cimport divide_by
from dps._kernels.window cimport add, load, rank_load, rank_store, store


cdef class KeyedPush(Push):
    """A rank's pulls and pushes by keys; see the stub."""

    def __init__(self, *args, LazyUpdate lazy, width, since, keys, key_counts):
        cdef Py_ssize_t size
        super().__init__(*args)
        if self.n_shards != 1:
            raise ValueError(f"steps by keys need one shard, got {self.n_shards}")
        size = self.shards[0].stop - self.shards[0].start
        self.lazy = lazy
        self._arrays.append(lazy)
        self.touched = KeyList(self.size)
        self.keys = &self.touched.keys
        self.width = width
        self.held.size = self.size
        self.held.params = self.shards[0].params
        self.held.state = self.shards[0].state
        self.held.since = <int32_t*> self._keep(since)
        self.slot_keys = <int32_t*> self._keep(keys)
        self.slot_counts = <int64_t*> self._keep(key_counts)
        self.marks = <int32_t*> self._keep(np.zeros(size, np.int32))
        self.merged = <int32_t*> self._keep(np.empty(size, np.int32))
        self.sums = self._keep(np.empty(size, "f4" if self.single else "f8"))

    def begin(self, rates, epoch):
        """Begin an epoch of the fit."""
        self.lazy.begin(*rates.of_epoch(epoch))
        self.now = 0

    cdef int pull(self, Py_ssize_t first) except -1 nogil:
        gather(
            &self.lazy.lazy, self.single, &self.held, self.keys.list + first,
            self.keys.count - first, 0, self.now, self.params, True,
        )
        return PUSHED

    cdef bint _deliver(self, const char* grad, Py_ssize_t n_ranks) noexcept nogil:
        cdef Shard* shard = &self.shards[0]
        cdef Py_ssize_t first = self.rank * shard.slot_stride
        cdef int64_t* counts = self.slot_counts + self.rank * shard.words.n_ranks
        if self.single:
            return deliver(
                self.keys.list, self.keys.count, <const float*> grad, True, self.width, n_ranks,
                self.slot_keys + first, <float*> shard.slots + first, counts,
            )
        return deliver(
            self.keys.list, self.keys.count, <const double*> grad, True, self.width, n_ranks,
            self.slot_keys + first, <double*> shard.slots + first, counts,
        )

    cdef void _count_push(self) noexcept nogil:
        self.activity.push(0, self.keys.count * (4 if self.single else 8) + 4 * self.keys.count)

    cdef int _exchange(self, const char* grad, int64_t rows) except -1 nogil:
        """Twin of `keyed.exchange` up to the use of the slice, and from there to its end."""
        cdef Shard* shard = &self.shards[0]
        cdef int64_t total = 0
        cdef int n_ranks = shard.words.n_ranks, rank, status
        self.sequence += 1
        self.now += 1
        if load(&shard.words, self.places.stop) != 0:
            return STOPPED
        if not self._deliver(grad, n_ranks):
            return BAD_GRADIENT
        self._count_push()
        rank_store(&shard.words, self.rank, self.places.rows, rows)
        rank_store(&shard.words, self.rank, self.places.arrived, self.sequence)
        self.wait(0, self.places.arrived, 0, self.sequence)
        for rank in range(n_ranks):
            shard.counts[rank] = rank_load(&shard.words, rank, self.places.rows)
            total += shard.counts[rank]
        total = max(total, 1)
        if self.single:
            self.n_merged = merge(
                self.slot_keys, <const float*> shard.slots, shard.slot_stride, self.slot_counts,
                shard.counts, n_ranks, self.rank, shard.start, self.marks, self.merged,
                <float*> self.sums, <float> total,
            )
        else:
            self.n_merged = merge(
                self.slot_keys, <const double*> shard.slots, shard.slot_stride, self.slot_counts,
                shard.counts, n_ranks, self.rank, shard.start, self.marks, self.merged,
                <double*> self.sums, <double> total,
            )
        status = self._used()
        if status != PUSHED:
            return status
        if self.rank == 0:
            store(&shard.words, self.places.version, self.lazy.lazy.before + self.now)
        rank_store(&shard.words, self.rank, self.places.done, self.sequence)
        self.wait(0, self.places.done, 0, self.sequence)
        return PUSHED

    cdef int _used(self) except -1 nogil:
        """Use this rank's slice of the mean."""
        return PUSHED


cdef class SynchronousKeyedPush(KeyedPush):
    """Twin of `update_keys` of dps.modes.synchronous."""

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        return self._exchange(grad, rows)

    cdef int _used(self) except -1 nogil:
        cdef Shard* shard = &self.shards[0]
        cdef bint finite = apply(
            &self.lazy.lazy, self.single, &self.held, self.merged, self.n_merged, 0, self.now,
            self.sums,
        )
        if self.now == self.lazy.lazy.steps:
            finite &= settle(
                &self.lazy.lazy, self.single, &self.held, shard.start, shard.stop, 0, self.now
            )
        return PUSHED if finite else BAD_UPDATE


cdef class AllReduceKeyedPush(KeyedPush):
    """Twin of `push_keys` of dps.modes.allreduce; ``values`` is its copy of params and state."""

    cdef int32_t* total_keys
    cdef int64_t* total_counts

    def __init__(self, *args, values, total_keys, total_counts, **more):
        super().__init__(*args, **more)
        self.held.params = self._keep(values)
        self.held.state = self._keep(values[1:])
        self.total_keys = <int32_t*> self._keep(total_keys)
        self.total_counts = <int64_t*> self._keep(total_counts)

    cdef int _used(self) except -1 nogil:
        cdef Shard* shard = &self.shards[0]
        cdef Py_ssize_t itemsize = 4 if self.single else 8, n = self.n_merged
        memcpy(self.total_keys + shard.start, self.merged, n * sizeof(int32_t))
        memcpy(shard.total + shard.start * itemsize, self.sums, n * itemsize)
        self.total_counts[self.rank] = n
        return PUSHED

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        cdef Shard* shard = &self.shards[0]
        cdef Py_ssize_t itemsize = 4 if self.single else 8, first
        cdef bint finite = True
        cdef int status = self._exchange(grad, rows), rank
        if status != PUSHED:
            return status
        for rank in range(shard.words.n_ranks):
            first = min(self.size, rank * self.width)
            finite &= apply(
                &self.lazy.lazy, self.single, &self.held, self.total_keys + first,
                self.total_counts[rank], 0, self.now, shard.total + first * itemsize,
            )
        if self.now == self.lazy.lazy.steps:
            finite &= settle(
                &self.lazy.lazy, self.single, &self.held, 0, self.size, 0, self.now
            )
        return PUSHED if finite else BAD_UPDATE


cdef class AsynchronousKeyedPush(KeyedPush):
    """Twin of the operations by keys of dps.modes.asynchronous."""

    cdef int64_t epoch
    cdef int64_t base

    def begin(self, rates, epoch):
        """Begin an epoch of the fit."""
        self.lazy.begin(*rates.around(epoch))
        self.epoch = epoch

    cdef void _count(self, int64_t version) noexcept nogil:
        """Where the last settling and a version lie in the rates around the epoch."""
        cdef Shard* shard = &self.shards[0]
        cdef int64_t steps = self.lazy.lazy.steps
        self.base = load(&shard.words, self.places.settled_epochs) - self.epoch + 1
        self.base *= steps // 3
        self.now = self.base + version - load(&shard.words, self.places.settled_version)
        self.now = min(self.now, steps)

    cdef int pull(self, Py_ssize_t first) except -1 nogil:
        cdef Shard* shard = &self.shards[0]
        cdef int status = self._enter()
        cdef int64_t version
        if status != PUSHED:
            return status
        version = load(&shard.words, self.places.version)
        if first == 0:
            self.version = version
        self._count(version)
        gather(
            &self.lazy.lazy, self.single, &self.held, self.keys.list + first,
            self.keys.count - first, self.base, self.now, self.params, True,
        )
        rank_store(&shard.words, self.rank, self.places.free, 1)
        return PUSHED

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        cdef Shard* shard = &self.shards[0]
        cdef Py_ssize_t itemsize = 4 if self.single else 8
        cdef Py_ssize_t first = self.rank * shard.slot_stride, n = self.keys.count
        cdef char* slot = shard.slots + first * itemsize
        cdef int64_t version
        cdef int status
        if rows == 0:
            return PUSHED
        self.sequence += 1
        if not self._deliver(grad, 1):
            return BAD_GRADIENT
        self._count_push()
        if self.single:
            divide_by(<float*> slot, <float> <double> rows, n)
        else:
            divide_by(<double*> slot, <double> rows, n)
        status = self._enter()
        if status != PUSHED:
            return status
        version = add(&shard.words, self.places.version, 1)
        self._count(version)
        if not apply(
            &self.lazy.lazy, self.single, &self.held, self.slot_keys + first, n, self.base,
            self.now, slot,
        ):
            return BAD_UPDATE
        rank_store(&shard.words, self.rank, self.places.arrived, self.sequence)
        self.activity.age(0, version - 1 - self.version)
        self.stale_sum += <double> (version - 1 - self.version)
        self.stale_max = max(self.stale_max, <double> (version - 1 - self.version))
        rank_store(&shard.words, self.rank, self.places.free, 1)
        return PUSHED
