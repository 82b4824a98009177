"""Allreduce: every rank holds the parameters and applies the same mean gradient.

The shards provide slots and hold no parameters. The mean is computed by the code of sync
(mapped.pyx), but it is written to TOTAL, and each rank applies all of it to its own copy. So all
ranks hold the bits of sync.

If vectors travel to other hosts as bfloat16, the mean is rounded once for all ranks. LEFT_OVER has
the rounding error: the rank that sums a slice adds it to the mean, and writes the error of the new
mean before it is DONE.
"""
from libc.stdint cimport int64_t, uint16_t
from libc.string cimport memcpy, memset

import numpy as np

from dps._kernels.buffer cimport Buffer
from dps._runtime.channel.base cimport ShardChannel, Sparse
from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.wire.message cimport BAD_UPDATE, FULL, NARROW, PUSH, PUSH_KEYS, RAN, Request
from dps._runtime.keyed cimport KeyedParams
from dps._runtime.step cimport Step

from dps._runtime.updates import bind


cdef class AllReduceChannel(MappedChannel):
    """A rank's channel to a shard that provides slots."""

    def __init__(self, window, rank, shard, first, slow_wait, tick, activity):
        MappedChannel.__init__(self, window, rank, shard, first, slow_wait, tick, activity)
        self.left_over, self.rounds = self.keep(window.left_over), window.spec.rounds

    cdef bint takes(self, int64_t coding) noexcept nogil:
        return coding == FULL or (coding == NARROW and self.rounds)

    cdef bint _is_rounded(self) noexcept nogil:
        """True if the mean of this exchange is in TOTAL as bfloat16."""
        return self.rounds and self.request.op == PUSH and self.request.coding == NARROW

    cdef bint _to_total(self, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
        cdef Py_ssize_t itemsize = self.numbers.itemsize
        cdef char* left_over = self.left_over + first * itemsize
        if not self._is_rounded():
            return MappedChannel._to_total(self, first, last)
        self.numbers.narrow(
            <uint16_t*> self.total + first, self.scratch.at, left_over, last - first
        )
        if self.request.last:
            memset(left_over, 0, (last - first) * itemsize)
        return True

    cdef int give(self, const char* part, char* taken) noexcept nogil:
        if not self._is_rounded():
            return MappedChannel.give(self, part, taken)
        if taken is NULL:
            return self.answer_with(part, self.size * sizeof(uint16_t))
        self.numbers.widen(
            taken + self.first * self.numbers.itemsize, <const uint16_t*> part, self.size
        )
        return RAN

    cdef int use_keys(self, Py_ssize_t n) except -1 nogil:
        self.key_slots.lay_out(self.slice.place, self.slice.start, n, self.total)
        return True

    cdef int pushed(self, char* taken) except -1 nogil:
        cdef Py_ssize_t first
        cdef int place, status = MappedChannel.pushed(self, taken)
        if not self.by_keys():
            return status
        self.mean.n_parts = self.slice.n
        for place in range(self.slice.n):
            first = min(self.n_keys, place * self.key_slots.slice_keys)
            self.mean.keys[place] = self.key_slots.total_keys + first
            self.mean.values[place] = self.total + first * self.key_bytes
            self.mean.counts[place] = self.key_slots.total_counts[place]
        return status


cdef class AllReduceStep(Step):
    """A rank's steps on its own copy.

    held: (1 + state_rows, size) array, parameters and state.
    update: how a gradient is applied to them.
    """

    def __init__(self, rank, channels, held, total, version, activity, update, host=None):
        Step.__init__(self, rank, channels, held[0], total, version, activity, update.rates, host)
        self.update = bind(update, held.dtype, self.size, self._refs)
        self.state = self.keep(held[1:])
        self.means = self.keep(np.empty(self.size, held.dtype))
        if update.rates is not None:
            since = np.full(self.size // self.key_map.width, version, np.int64)
            self.keyed = KeyedParams(update, held[0], held[1:], since)
            self.renumbered = Buffer()

    def begin_epoch(self, epoch):
        """Begin an epoch of the fit."""
        Step.begin_epoch(self, epoch)
        if self.keyed is not None:
            self.keyed.begin_epoch(epoch, *self.rates.of_epoch(epoch))

    def pull(self):
        """Do nothing: the rank has the parameters."""
        return "ran"

    cdef char* _taken(self) noexcept nogil:
        return self.means

    cdef Request* request(self, int number, int64_t op) noexcept nogil:
        cdef Request* request = Step.request(self, number, op)
        if op == PUSH_KEYS:  # the shards have no parameters to return
            request.n_keys = (<ShardChannel> self._channels[number]).picks.n
        return request

    cdef int pull_keys(self) except -1 nogil:
        self._make_room()
        self._split(self.keys.keys.list, self.keys.keys.count)
        self.keyed.gather(
            self.keys.keys.list, self.keys.keys.count, self.version + self.sequence, self.at_keys
        )
        return RAN

    cdef int pushed(self, double rate) except -1 nogil:
        cdef bint finite
        if self.keys is not None:
            return self._apply_keys()
        finite = self.update.apply(
            self.params, self.means, self.state, self.size, 0, self.size,
            self.version + self.sequence, rate,
        )
        return RAN if finite else BAD_UPDATE

    cdef int _apply_keys(self) except -1 nogil:
        cdef int64_t now = self.version + self.sequence
        cdef bint finite = True
        cdef int number
        if self.host is None:
            for number in range(self.n_shards):
                finite &= self._apply_mean(
                    <ShardChannel> self._channels[number], self.n_shards > 1
                )
        else:
            finite = self._apply_mean(self.host, False)
        if self.keyed.is_last(now):
            finite &= self.keyed.flush(0, self.size, now)
        return RAN if finite else BAD_UPDATE

    cdef bint _apply_mean(self, ShardChannel channel, bint local) except -1 nogil:
        """Apply the result of a push, whose keys may be the shard's own; True if all is finite."""
        cdef Sparse* mean = &channel.mean
        cdef const int64_t* keys
        cdef bint finite = True
        cdef Py_ssize_t part, nbytes
        for part in range(mean.n_parts):
            keys = mean.keys[part]
            if local:  # other ranks read the list
                nbytes = mean.counts[part] * sizeof(int64_t)
                keys = <int64_t*> self.renumbered.fit(nbytes)
                memcpy(self.renumbered.at, mean.keys[part], nbytes)
                channel._globalise(<int64_t*> self.renumbered.at, mean.counts[part])
            finite &= self.keyed.apply(
                keys, mean.values[part], mean.counts[part], self.version + self.sequence
            )
        return finite
