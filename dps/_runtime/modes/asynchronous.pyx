"""Async: the shards hold the parameters, and apply a gradient when it arrives.

No rank waits for another. Reads are not coordinated with writes, and two ranks that push at once
may each lose element updates of the other. A single rank gives bit for bit sequential training.

Protocol, of each shard by itself. A rank sets FREE to 0 before it writes the parameters of a shard,
or follows lazy updates there, and back to 1 when it has done. The taker of a snapshot sets OPEN to
0, waits until all ranks are FREE, copies and sets OPEN to 1. A rank that finds OPEN at 0 *after* it
has set FREE to 0 retreats and waits: both words are sequentially consistent, so either the closer
sees the rank busy or the rank sees the closed gate. A rank that dies inside a push stays not FREE:
no snapshot is taken over its half push. A gradient is looked at before its rank enters, so that one
that is not finite leaves the gate free; an update that overflowed does not.

Modes in which an update must not lose any of another have ranks write one after the other: a rank
takes a ticket, the next of TICKETS, says so in TICKET, and waits until TURN has come to it; when it
has written it moves TURN on. It waits while it is FREE, so a snapshot may come in between. A rank
that dies in its turn leaves the others waiting, who look at the lease of the one whose turn it is.

Where a shard is far and there are several ranks, a push is on its way while the rank computes its
next gradient, from parameters that lack it: its answer is collected before the next push, or before
anything else is asked of a shard. One more update of staleness for a round trip; one rank alone
waits, and stays sequential. A crash leaves what it leaves of any push that is under way, and the
error of a push is that of the step that collects it.

Where steps go by keys, the closer brings all parameters up to date before the snapshot. Updates
have the learning rate that the schedule has at their number.
"""
from libc.stdint cimport int64_t

import numpy as np

from dps._runtime.shared.activity cimport PULL as PULLING, PUSH as PUSHING
from dps._runtime.channel.base cimport ShardChannel
from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.wire.message cimport BAD_UPDATE, PUSH, PUSH_KEYS, RAN, Request, STOPPED
from dps._runtime.step cimport Step
from dps._runtime.shared.words cimport (
    R_ARRIVED, R_FREE, R_TICKET, S_VERSION, W_OPEN, W_STOP, W_TICKETS, W_TURN, add, load, rank_store
)


cdef class AsynchronousChannel(MappedChannel):
    """A rank's channel to a shard that applies gradients as they arrive."""

    cdef int _enter(self) except -1 nogil:
        """Begin to write, once no snapshot is being taken."""
        while True:
            if load(&self.words, W_STOP) != 0:
                return STOPPED
            rank_store(&self.words, self.rank, R_FREE, 0)
            if load(&self.words, W_OPEN) != 0:
                break
            rank_store(&self.words, self.rank, R_FREE, 1)
            self.wait(-1, W_OPEN, 1)
        if self.by_keys():
            self.begin_epoch()
        return RAN

    cdef void _leave(self) noexcept nogil:
        rank_store(&self.words, self.rank, R_FREE, 1)

    cdef int begin_turn(self) except -1 nogil:
        """Wait until no other rank that takes turns writes."""
        cdef int64_t ticket = add(&self.words, W_TICKETS, 1)
        rank_store(&self.words, self.rank, R_TICKET, ticket)
        self.wait(-1, W_TURN, ticket - 1)
        return 0

    cdef void end_turn(self) noexcept nogil:
        add(&self.words, W_TURN, 1)

    cdef int push(self) except -1 nogil:
        cdef int64_t step
        cdef int status = self.fill(1)
        if status != RAN:
            return status
        self.numbers.divide(self.own_slot(), <double> self.request.rows, self.given_size())
        status = self._enter()
        if status != RAN:
            return status
        step = add(&self.store_words, S_VERSION, 1)
        if not self.apply_slot(step):
            return BAD_UPDATE
        rank_store(&self.words, self.rank, R_ARRIVED, self.request.sequence)
        self._leave()
        self.answer.before = step - 1
        return RAN

    cdef bint apply_slot(self, int64_t step) except -1 nogil:
        """Apply the mean gradient in the rank's slot as update ``step``; True if all is finite."""
        if not self.by_keys():
            return self.apply_whole(self.own_slot(), step)
        return self.keyed.make_and_apply(
            self.key_slots.of_slot(self.slots.own), self.own_slot(), self.picks.n, step
        )

    cdef bint apply_whole(self, char* mean, int64_t step) except -1 nogil:
        return self.update.apply(
            self.params, mean, self.state, self.size, 0, self.size, step, self.request.rate
        )

    cdef int pushed(self, char* taken) except -1 nogil:
        self.answer.version = load(&self.store_words, S_VERSION)
        self.activity.spend(PUSHING, self.shard)
        self.give(self.params, taken)
        self.activity.spend(PULLING, -1)
        return RAN

    cdef tuple rates_of_epoch(self):
        return self.keyed.rates.of_three_epochs(self.request.epoch)

    cdef int pull(self, char* taken) except -1 nogil:
        cdef int status
        if not self.by_keys():
            return MappedChannel.pull(self, taken)
        status = self._enter()
        if status != RAN:
            return status
        self.answer.version = load(&self.store_words, S_VERSION)
        self.gather_keys(self.answer.version, taken)
        self._leave()
        return RAN

    def flush(self, int64_t epoch):
        """See `MappedChannel.flush`."""
        cdef int64_t version = load(&self.store_words, S_VERSION)
        cdef bint finite
        if self.keyed is None:
            return True
        self.request.epoch = epoch
        self.begin_epoch()
        with nogil:
            finite = self.keyed.flush(0, self.size, version)
            self.keyed.expire_rows(0, self.size, version)
        return bool(finite)


cdef class AsynchronousStep(Step):
    """A rank's pushes; `params` is its own copy."""

    def __init__(self, rank, channels, params, total, version, activity, rates=None):
        Step.__init__(self, rank, channels, params, total, version, activity, rates)
        marks = np.zeros((3, len(channels)), np.int64)
        self.current = <int64_t*> self.keep(marks)
        self.based = self.current + len(channels)
        self.waiting = (self.based + len(channels))
        self.ahead = False
        for channel in channels:
            self.ahead = self.ahead or (channel.far and channel.n_ranks > 1)

    @property
    def busy(self):
        """True while a push is in progress."""
        return any([self.waiting[number] for number in range(self.n_shards)])

    def staleness(self):
        """Sum and largest staleness of pushes since the last call."""
        result = self.stale_sum, self.stale_max
        self.stale_sum = self.stale_max = 0
        return result

    def pull(self):
        """Read the current parameters."""
        ended = Step.pull(self)
        for number in range(self.n_shards):
            self.current[number] = (<ShardChannel> self._channels[number]).answer.version
        return ended

    cdef int pull_keys(self) except -1 nogil:
        cdef int number, status = Step.pull_keys(self)
        if self.batch == self.keys.keys.batch:  # it has further rows of the table
            return status
        self.batch = self.keys.keys.batch
        for number in range(self.n_shards):
            self.current[number] = (<ShardChannel> self._channels[number]).answer.version
        return status

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        cdef Request* request
        cdef int64_t lacking
        cdef int number, status
        if rows == 0:
            return RAN
        for number in range(self.n_shards):
            # The parameters of the gradient lack the push that is still in progress.
            lacking = self.current[number]
            status = self._collect(number)
            if status != RAN:
                return status
            self.based[number] = lacking
        self.sequence += 1
        for number in range(self.n_shards):
            request = self.request(number, PUSH if self.keys is None else PUSH_KEYS)
            request.rows = rows
            request.rate = rate
            request.based = self.based[number]
            status = (<ShardChannel> self._channels[number]).begin(grad)
            if status != RAN:
                return status
            self.waiting[number] = True
        for number in range(self.n_shards):
            if not (self.ahead and (<ShardChannel> self._channels[number]).far):
                status = self._collect(number)
                if status != RAN:
                    return status
        return RAN

    cdef int collect(self) except -1 nogil:
        cdef int number, status
        for number in range(self.n_shards):
            status = self._collect(number)
            if status != RAN:
                return status
        return RAN

    cdef int _collect(self, int number) except -1 nogil:
        """Wait for a shard's pending answer."""
        cdef int64_t stale
        cdef int status
        if not self.waiting[number]:
            return RAN
        self.waiting[number] = False
        status = (<ShardChannel> self._channels[number]).finish(self.params)
        if status != RAN:
            return status
        stale = (<ShardChannel> self._channels[number]).answer.before - self.based[number]
        self.activity.age(number, stale)
        if number == 0:  # the first shard stands for all in an epoch's record
            self.stale_sum += <double> stale
            self.stale_max = max(self.stale_max, <double> stale)
        if self.keys is None:
            self.current[number] = (<ShardChannel> self._channels[number]).answer.version
        if (<ShardChannel> self._channels[number]).far:
            self.activity.spend(PUSHING, -1)
        return RAN
