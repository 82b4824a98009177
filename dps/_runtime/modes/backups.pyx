"""Sync with backup workers: an update uses the gradients that arrive first.

Of N ranks the first N - b that come with a gradient of step t make update t; who comes later is too
late. No rank waits for the b slowest. What comes late is dropped, or counts in the step that is at
work by then, beside the N - b of that step. Sources: Chen et al., 2016 (drop).

Protocol, of each shard by itself. STEP holds three numbers: the updates that are done, and how many
gradients of the next step have been taken, in time and late. It only ever grows. For step t:

1. A rank fills its slot. If t - 1 updates are done and fewer than N - b gradients have been taken
   it adds itself to STEP, by one compare and exchange: it is in time. It writes ROWS, then ARRIVED
   = t, then adds itself to TAKEN.
2. Who makes N - b of it closes the step, at once: it waits until TAKEN holds all that STEP counts,
   which takes as long as two words are written; sums the slots in rank order, those in time before
   those that come late; applies the mean to the whole shard; sets TAKEN to 0, VERSION, and STEP to
   t updates and nothing taken. Until then STEP is full, and no rank is in time or late.
3. Who finds that it is too late for t copies its slot into its late one, adds itself to STEP as
   late for whichever step is at work, and then writes LATE_ROWS and LATE, and adds to TAKEN. Where
   that step lies behind the end of the epoch, or late gradients are not wanted, it is dropped.
   A late slot is written again only when the step that it counted in is done.
4. All wait until t updates are done, and read: a copy counts if STEP says the same updates before
   and after, and not in the middle of one. What has been done by then is the answer's version. The
   rank goes on with the step after the most that any shard has done; steps in between, and their
   rows, are left out. Where another shard is not there yet, it waits for it.

Why no rank waits for ever while N - b ranks get on. A rank waits, but for an update that is being
applied, only for steps that it has handed a gradient to every shard for. If a shard has done t,
then N - b ranks have given their gradients of t to all shards. Else all ranks that get on come to
t.

What a crash leaves. Before a rank is in STEP, nothing: the others get on without it if they are
enough, and hear of it at the end of the epoch, which waits for all, or from the trainer. Between
STEP and TAKEN the one that closes waits, and while it closes all wait, until the watch finds the
dead: the fit is stopped with half an update, and only the snapshot of the last closed epoch counts.

By keys, a slot has one slice, of all keys, and the last update of an epoch brings all parameters up
to date. Rows count or are lost as the first shard says; others may have another first N - b.
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy

import numpy as np

from dps._kernels.buffer cimport Buffer
from dps._kernels.reduce cimport BLOCK
from dps._runtime.shared.activity cimport PULL as PULLING, PUSH as PUSHING
from dps._runtime.channel.base cimport ShardChannel
from dps._runtime.wire.message cimport BAD_UPDATE, PULL, PULL_KEYS, RAN, Request, STOPPED
from dps._runtime.step cimport Step
from dps._runtime.modes.synchronous cimport SynchronousChannel
from dps._runtime.shared.words cimport (
    R_ARRIVED, R_DONE, R_LATE, R_LATE_ROWS, R_ROWS, S_VERSION, W_STEP, W_STOP, W_TAKEN, add, load,
    rank_load, rank_store, replace, store
)

cdef extern from "waiting.h" nogil:
    void dps_fence()

cdef enum:
    DONE = 24  # first bit of the updates in STEP
    LATE = 12  # first bit of the late gradients
    MANY = 4095  # largest number of each


cdef class BackupsChannel(SynchronousChannel):
    """A rank's channel to a shard whose updates use the first gradients."""

    cdef int quorum
    cdef int64_t counted  # the step in which the last gradient counts; 0: none
    cdef int64_t* taken_rows  # (2 slots.n,) rows of slots in time, then of late ones
    cdef Buffer copied  # a consistent copy of the parameters

    def __init__(self, window, rank, shard, first, slow_wait, tick, activity):
        SynchronousChannel.__init__(self, window, rank, shard, first, slow_wait, tick, activity)
        self.quorum = window.spec.quorum
        # The rank that closes a step works for all.
        self.slice.place, self.slice.start, self.slice.stop = 0, 0, self.size
        self.scratch.n = max(BLOCK, min(self.update.most, self.size))
        self.scratch.at = self.keep(np.empty(self.scratch.n, window.spec.dtype))
        self.taken_rows = <int64_t*> self.keep(np.zeros(2 * self.slots.n, np.int64))
        self.copied = Buffer()

    cdef int push(self) except -1 nogil:
        cdef int status
        if load(&self.words, W_STOP) != 0:
            return STOPPED
        status = self.fill(1)
        return self._offer() if status == RAN else status

    cdef int _offer(self) except -1 nogil:
        """Hand over the slot, in time or late; close the step if it is the last gradient."""
        cdef int64_t step = self.request.sequence, state = load(&self.words, W_STEP)
        cdef int64_t last = <int64_t> self.request.notes[0]
        self.counted = 0
        while state >> DONE < step and (state & MANY) < self.quorum:
            if replace(&self.words, W_STEP, state, state + 1):
                self.counted = step
                rank_store(&self.words, self.rank, R_ROWS, self.request.rows)
                rank_store(&self.words, self.rank, R_ARRIVED, step)
                add(&self.words, W_TAKEN, 1)
                if (state & MANY) + 1 == self.quorum:
                    return self._close(step)
                return RAN
            state = load(&self.words, W_STEP)
        return self._offer_late(last) if last else RAN

    cdef int _offer_late(self, int64_t last) except -1 nogil:
        """Let the slot count in the current step, unless that comes after `last`."""
        cdef Py_ssize_t stride = self.slots.stride * self.numbers.itemsize
        cdef Py_ssize_t own = self.slots.own, late = self.slots.n + own
        cdef Py_ssize_t nbytes = self.given_size() * self.numbers.itemsize
        cdef int64_t state
        self.wait(-1, W_STEP, rank_load(&self.words, self.rank, R_LATE) << DONE)
        self.reserve(True, nbytes)
        memcpy(self.slots.at + late * stride, self.slots.at + own * stride, nbytes)
        if self.by_keys():
            self.key_slots.copy(late, own, self.picks.n)
        while True:
            state = self._quiet()
            if state >> DONE >= last:
                return RAN
            if replace(&self.words, W_STEP, state, state + (1 << LATE)):
                break
        self.counted = (state >> DONE) + 1
        rank_store(&self.words, self.rank, R_LATE_ROWS, self.request.rows)
        rank_store(&self.words, self.rank, R_LATE, self.counted)
        add(&self.words, W_TAKEN, 1)
        return RAN

    cdef int64_t _quiet(self) except -1 nogil:
        """Return STEP once no update is being applied."""
        cdef int64_t state = load(&self.words, W_STEP)
        while (state & MANY) == self.quorum:
            self.wait(-1, W_STEP, ((state >> DONE) + 1) << DONE)
            state = load(&self.words, W_STEP)
        return state

    cdef int _close(self, int64_t step) except -1 nogil:
        """Apply the gradients that were taken."""
        cdef int64_t state = load(&self.words, W_STEP)
        cdef int rank, slot, late
        self.wait(-1, W_TAKEN, (state & MANY) + (state >> LATE & MANY))
        self.slots.all_rows = 0
        for slot in range(self.slots.n):
            rank, late = <int> self.slots.ranks[slot], self.slots.n + slot
            self.taken_rows[slot] = self.taken_rows[late] = 0
            if rank_load(&self.words, rank, R_ARRIVED) == step:
                self.taken_rows[slot] = rank_load(&self.words, rank, R_ROWS)
            if rank_load(&self.words, rank, R_LATE) == step:
                self.taken_rows[late] = rank_load(&self.words, rank, R_LATE_ROWS)
            self.slots.all_rows += self.taken_rows[slot] + self.taken_rows[late]
        if not self.reduce(self.taken_rows, 2 * self.slots.n):
            return BAD_UPDATE
        store(&self.store_words, S_VERSION, self.request.step)
        store(&self.words, W_TAKEN, 0)
        store(&self.words, W_STEP, step << DONE)
        self.activity.spend(PUSHING, self.shard)
        return RAN

    cdef int pull(self, char* taken) except -1 nogil:
        self.wait(-1, W_STEP, self.request.sequence << DONE)
        return self._read(taken)

    cdef int pushed(self, char* taken) except -1 nogil:
        cdef int status = RAN
        self.wait(-1, W_STEP, self.request.sequence << DONE)  # with or without this rank's gradient
        rank_store(&self.words, self.rank, R_DONE, self.request.sequence)
        self.answer.before = self.counted
        self.activity.spend(PUSHING, self.shard)
        if not self.by_keys():
            status = self._read(taken)
            self.activity.spend(PULLING, -1)
            return status
        self.answer.version = load(&self.words, W_STEP) >> DONE
        return self.give(NULL, taken)

    cdef int _read(self, char* taken) except -1 nogil:
        """Read the parameters between two updates."""
        cdef Py_ssize_t nbytes = self.size * self.numbers.itemsize
        cdef int64_t state
        if self.by_keys():
            self.begin_epoch()
        while True:
            state = self._quiet()
            if self.by_keys():
                self.gather_keys(load(&self.store_words, S_VERSION), taken)
            elif taken is NULL:
                memcpy(self.copied.fit(nbytes), self.params, nbytes)
                self.answer_with(self.copied.at, nbytes)
            else:
                self._place(self.params, taken)
            if self._unchanged(state):
                break
        self.answer.version = state >> DONE
        return RAN

    cdef bint _unchanged(self, int64_t state) noexcept nogil:
        """True if STEP is unchanged and no update has started."""
        cdef int64_t now
        dps_fence()
        now = load(&self.words, W_STEP)
        return now >> DONE == state >> DONE and (now & MANY) < self.quorum


cdef class BackupsStep(Step):
    """A rank's steps; other ranks may complete some without it. `params` is its copy.

    rank, channels, params, total, version, activity, rates: as of a `Step`.
    late: whether a gradient that comes too late counts in the step at work.
    """

    cdef bint late
    cdef int64_t offered
    cdef int64_t dropped
    cdef int64_t came_late
    cdef double stale_sum
    cdef double stale_max

    def __init__(self, rank, channels, params, total, version, activity, rates, bint late):
        Step.__init__(self, rank, channels, params, total, version, activity, rates)
        self.late = late

    def dropped_rows(self):
        """Rows that did not count, and rows that came late, since the last call."""
        result = self.dropped, self.came_late
        self.dropped = self.came_late = 0
        return result

    def staleness(self):
        """Sum and largest staleness of pushes since the last call."""
        result = self.stale_sum, self.stale_max
        self.stale_sum = self.stale_max = 0
        return result

    cdef Request* request(self, int number, int64_t op) noexcept nogil:
        cdef Request* request = Step.request(self, number, op)
        request.notes[0] = self.way.last if self.late else 0
        return request

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        self.offered = rows
        return Step.push(self, grad, rows, rate)

    cdef int pushed(self, double rate) except -1 nogil:
        cdef int64_t counted, ahead = self.sequence
        cdef int number
        for number in range(self.n_shards):
            counted = (<ShardChannel> self._channels[number]).answer.before
            ahead = max(ahead, (<ShardChannel> self._channels[number]).answer.version)
            if self.late and counted:
                self.activity.age(number, counted - self.sequence)
            if number == 0:  # the first shard stands for all
                if counted:
                    self.stale_sum += <double> (counted - self.sequence)
                    self.stale_max = max(self.stale_max, <double> (counted - self.sequence))
                else:
                    self.dropped += self.offered
                if counted != self.sequence:
                    self.came_late += self.offered
        self.way.missed = ahead - self.sequence
        self.sequence = ahead
        return self._catch_up()

    cdef int _catch_up(self) except -1 nogil:
        """Wait for shards that are behind the others, and read them."""
        cdef int64_t op = PULL if self.keys is None else PULL_KEYS
        cdef int number, status
        if self.keys is not None:
            self._split(self.keys.keys.list, 0)
        for number in range(self.n_shards):
            if (<ShardChannel> self._channels[number]).answer.version >= self.sequence:
                continue
            self.request(number, op)
            if op == PULL_KEYS:
                (<ShardChannel> self._channels[number]).request.n_keys = 0
            status = (<ShardChannel> self._channels[number]).begin(NULL)
            if status == RAN:
                status = (<ShardChannel> self._channels[number]).finish(self.params)
            if status != RAN:
                return status
        return RAN
