"""Stale synchronous parallel: async with a bound on the ranks' distance in steps.

After Ho et al. 2013 ("More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server"). A rank's clock counts the steps that it has taken. Steps are numbered over epochs as if
each rank took as many in an epoch as the rank with most: those that a rank has not, it takes at
once when it rests at the epoch's end.

Protocol, of each shard by itself, with a bound of s steps. A rank with clock c
    reads     once CLOCK of all is c - s or more: it misses no step of any rank up to c - s
    pushes    as in async (asynchronous.pyx), and then sets CLOCK to c + 1
    rests     at an epoch's end: CLOCK, and GIVEN, become the clock at that end
With s = 0 nothing of step c + 1 may be applied before all have read at c. So a rank sets GIVEN to
c + 1 when it comes with its gradient, and waits until all have, before it applies it. All come at
once then, and no update may lose any of another: they take turns.

CLOCK is written at every shard before the rank waits at any: no ranks wait in a circle, since the
slowest never waits. A rank is FREE while it waits, so snapshots are taken meanwhile; and its clock
does not hold others back while it waits for the end of an epoch, or meets them there. By keys a
rank reads for each batch; whole vectors come with the answer to a push, and once more at the
beginning of an epoch, since others may have gone on while the rank was at rest.

How stale a push can be follows. Of each other rank, what was applied between a read at c and the
push behind it lies above c - s and is c + s + 1 or less: 2 s + 1 updates. With s = 0 it is one.

What a crash leaves: of a rank, a clock that stands still. Those that come to wait for it look at
its lease and its deadline, as in all waits. A push that was under way leaves what it leaves in
async, with the clock of before.
"""
from libc.stdint cimport int64_t

from dps._runtime.modes.asynchronous cimport AsynchronousChannel, AsynchronousStep
from dps._runtime.channel.base cimport ShardChannel
from dps._runtime.wire.message cimport BROADCAST, MEAN, RAN, Request
from dps._runtime.step cimport Step
from dps._runtime.shared.words cimport R_CLOCK, R_GIVEN, rank_load, rank_store

#: A bound that no rank reaches.
cdef int64_t UNBOUNDED = <int64_t> 1 << 62


cdef class BoundedChannel(AsynchronousChannel):
    """A rank's channel to a shard where no rank is over `max_delay` steps ahead; None: no bound."""

    def __init__(self, *given, max_delay):
        AsynchronousChannel.__init__(self, *given)
        self.max_delay = UNBOUNDED if max_delay is None else max_delay

    cdef int await_others(self, int64_t clock) except -1 nogil:
        """Wait until a rank with this clock may read; return how far ahead it then is."""
        cdef int64_t slowest = clock
        cdef int rank
        self.wait(R_CLOCK, 0, clock - self.max_delay)
        for rank in range(self.n_ranks):
            slowest = min(slowest, rank_load(&self.words, rank, R_CLOCK))
        self.answer.notes[0] = <double> (clock - slowest)
        return 0

    cdef int pull(self, char* taken) except -1 nogil:
        self.await_others(self.request.step - 1)
        return AsynchronousChannel.pull(self, taken)

    cdef int before_apply(self) except -1 nogil:
        """Announce a gradient; if all ranks apply at once, wait for this rank's turn."""
        if self.max_delay == 0:
            rank_store(&self.words, self.rank, R_GIVEN, self.request.step)
            self.wait(R_GIVEN, 0, self.request.step)
            self.begin_turn()
        return 0

    cdef int after_apply(self, int status) noexcept nogil:
        """Note that the gradient has been applied, or has failed."""
        if self.max_delay == 0:
            self.end_turn()
        if status == RAN:
            rank_store(&self.words, self.rank, R_CLOCK, self.request.step)
        return status

    cdef int push(self) except -1 nogil:
        self.before_apply()
        return self.after_apply(AsynchronousChannel.push(self))

    cdef int pushed(self, char* taken) except -1 nogil:
        if not self.by_keys():  # the answer includes parameters
            self.await_others(self.request.step)
        return AsynchronousChannel.pushed(self, taken)

    def finish_steps(self, int64_t clock):
        """See `MappedChannel.finish_steps`."""
        rank_store(&self.words, self.rank, R_GIVEN, clock)
        rank_store(&self.words, self.rank, R_CLOCK, clock)


cdef class BoundedStep(AsynchronousStep):
    """A rank's pushes where ranks count their steps; `epoch_steps` are of the longest epoch."""

    def __init__(self, *given, int64_t epoch_steps):
        AsynchronousStep.__init__(self, *given)
        self.ahead = False  # otherwise a rank's parameters would lack its own last push
        self.epoch_steps = epoch_steps
        self.distance = 0

    def finish_steps(self):
        """See `Step.finish_steps`."""
        self.epochs += 1
        self.clock = max(self.clock, self.epochs * self.epoch_steps)
        return self.clock

    @property
    def needs_pull(self):
        """See `Step.needs_pull`."""
        return self.epochs > 0 and self.keys is None

    def clock_distance(self):
        """See `Step.clock_distance`."""
        result = self.distance
        self.distance = 0
        return result

    def pull(self):
        """Read the current parameters once the rank is not too far ahead."""
        ended = AsynchronousStep.pull(self)
        self._measure()
        return ended

    cdef Request* request(self, int number, int64_t op) noexcept nogil:
        cdef Request* request = Step.request(self, number, op)
        if op != MEAN and op != BROADCAST:
            request.step = self.clock + 1
        return request

    cdef void _measure(self) noexcept nogil:
        """Record how far ahead the rank was when it last read."""
        cdef double ahead
        cdef int number
        for number in range(self.n_shards):
            ahead = (<ShardChannel> self._channels[number]).answer.notes[0]
            self.activity.lead(number, <int64_t> ahead)
            self.distance = max(self.distance, ahead)

    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil:
        cdef int status = AsynchronousStep.push(self, grad, rows, rate)
        if status == RAN and rows:
            self.clock += 1
            if self.keys is None:
                self._measure()
        return status

    cdef int pull_keys(self) except -1 nogil:
        cdef int status = AsynchronousStep.pull_keys(self)
        if status == RAN:
            self._measure()
        return status
