"""Async whose shards gather a number of gradients and apply their mean.

That is the accumulator of TensorFlow's SyncReplicasOptimizer, without its tokens: a rank goes on
with the parameters as they are, so one rank may give several gradients of a mean. Those that miss
more than ``drop_after`` updates of the shard are dropped.

Protocol, of each shard by itself. A rank that comes with a gradient waits for its turn and enters
(asynchronous.pyx); then it
    checks  how many updates the gradient misses, and drops it if these are too many
    adds    it to TOTAL, or writes it there where it is the first; by keys at their places in TOTAL,
            with a mark in MARKS and the key in TOTAL_KEYS where it is the first there
    counts  in GATHERED: gradients, rows, its rate, keys
    applies ``sum g / sum n`` as one update, if its gradient is the k-th, and begins anew
and leaves, and ends its turn. No other rank writes TOTAL, MARKS or GATHERED meanwhile. What is read
is not coordinated with that, as in async.

At the end of an epoch, while no rank pushes, the closer applies the mean of what has been gathered
until then, of as few gradients as it is of, at the rate of the last one: nothing is lost, and every
snapshot has all that has been handed over. Updates of an epoch may so be more than its gradients
over k by one, or fewer where some are dropped. So by keys the learning rates of updates to come are
counted from the last such end, whose number of epochs and of updates stand in GATHERED, too.

What a crash leaves: of a rank that waits, a ticket whose turn comes, where the others look at its
lease; of one that has its turn, half a sum or half an update. It is not FREE, so no snapshot is
taken of that.
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from dps._runtime.modes.asynchronous cimport AsynchronousChannel, AsynchronousStep
from dps._runtime.channel.base cimport ShardChannel
from dps._runtime.wire.message cimport BAD_UPDATE, RAN
from dps._runtime.shared.words cimport R_ARRIVED, S_VERSION, add, load, rank_store

cdef enum:
    # Places in GATHERED.
    GRADIENTS
    ROWS
    RATE
    KEYS
    CLOSED  # number of closed epochs when gradients were last applied
    VERSION  # the shard's updates at that time

#: More updates than any gradient can miss.
cdef int64_t NEVER = <int64_t> 1 << 62


cdef class GatheringChannel(AsynchronousChannel):
    """A rank's channel to a shard that applies the mean of `aggregate` gradients.

    A gradient that misses more than `drop_after` updates is dropped; None: never.
    """

    cdef readonly int64_t aggregate
    cdef readonly int64_t drop_after
    cdef double* gathered           # see `Window`
    cdef char* marks  # for each key whether a gradient of it has been gathered
    cdef bint counts_now  # whether the current gradient counts

    def __init__(self, window, *given, int64_t aggregate, drop_after):
        AsynchronousChannel.__init__(self, window, *given)
        self.aggregate = aggregate
        self.drop_after = NEVER if drop_after is None else drop_after
        self.gathered = <double*> self.keep(window.gathered)
        self.marks = self.keep(window.marks)

    cdef int _begin(self) except -1 nogil:
        """Wait for this rank's turn, and set `counts_now`."""
        cdef int status
        self.begin_turn()
        status = self._enter()
        if status != RAN:
            self.end_turn()
            return status
        self.answer.before = load(&self.store_words, S_VERSION)
        self.counts_now = self.answer.before - self.request.based <= self.drop_after
        self.answer.notes[0] = 0 if self.counts_now else <double> self.request.rows
        return RAN

    cdef int _end(self, bint finite) except -1 nogil:
        """Count the gradient, apply the mean if it is complete, and end the turn."""
        if finite and self.counts_now:
            self.gathered[GRADIENTS] += 1
            self.gathered[ROWS] += <double> self.request.rows
            self.gathered[RATE] = self.request.rate
            if self.gathered[GRADIENTS] >= <double> self.aggregate:
                finite = self._apply_gathered()
        if not finite:  # the rank stays inside, so that no snapshot is taken
            self.end_turn()
            return BAD_UPDATE
        rank_store(&self.words, self.rank, R_ARRIVED, self.request.sequence)
        self._leave()
        self.end_turn()
        return RAN

    cdef bint _apply_gathered(self) except -1 nogil:
        """Apply the mean of the gathered gradients; True if all is finite."""
        cdef int64_t version = add(&self.store_words, S_VERSION, 1)
        cdef double rows = self.gathered[ROWS]
        cdef Py_ssize_t n = <Py_ssize_t> self.gathered[KEYS], i
        cdef Py_ssize_t each = self.key_bytes
        cdef int64_t* keys = NULL
        cdef char* sums = NULL
        self.gathered[GRADIENTS] = self.gathered[ROWS] = self.gathered[KEYS] = 0
        if not self.key_width:
            self.numbers.divide(self.total, rows, self.size)
            return self.apply_whole(self.total, version)
        keys, sums = self.key_slots.total_keys, self.key_slots.sums.fit(n * each)
        for i in range(n):
            self.marks[keys[i]] = 0
            memcpy(sums + i * each, self.total + keys[i] * each, each)
        self.numbers.divide(sums, rows, n * self.key_width)
        return self.keyed.apply(keys, sums, n, version)

    cdef int push(self) except -1 nogil:
        cdef int status = self.fill(1)
        if status == RAN:
            status = self._begin()
        if status != RAN:
            return status
        if self.counts_now:
            self._gather()
        return self._end(True)

    cdef int _gather(self) except -1 nogil:
        """Add the rank's slot."""
        cdef char* slot = self.own_slot()
        cdef int64_t* keys
        if self.by_keys():
            keys = self.key_slots.of_slot(self.slots.own)
            self._add_keys(
                keys, slot,
                self.keyed.make_rows(keys, slot, self.picks.n, self.answer.before + 1),
            )
        elif self.gathered[GRADIENTS] == 0:
            memcpy(self.total, slot, self.size * self.numbers.itemsize)
        else:
            self.numbers.add(self.total, slot, self.size)
        return 0

    cdef tuple rates_of_epoch(self):
        return self.keyed.rates.from_last_flush(
            int(self.gathered[CLOSED]), int(self.gathered[VERSION]) or self.keyed.rates.version
        )

    cdef void _add_keys(self, int64_t* keys, const char* values, Py_ssize_t n) noexcept nogil:
        cdef Py_ssize_t known = <Py_ssize_t> self.gathered[KEYS], i
        cdef char* place
        for i in range(n):
            place = self.total + keys[i] * self.key_bytes
            if self.marks[keys[i]]:
                self.numbers.add(place, values + i * self.key_bytes, self.key_width)
            else:
                self.marks[keys[i]] = 1
                self.key_slots.total_keys[known] = keys[i]
                known += 1
                memcpy(place, values + i * self.key_bytes, self.key_bytes)
        self.gathered[KEYS] = <double> known

    def flush(self, int64_t epoch):
        """See `MappedChannel.flush`; the gathered gradients are applied first."""
        cdef bint finite = True
        self.request.epoch = epoch
        if self.keyed is not None:
            self.begin_epoch()
        if self.gathered[GRADIENTS]:
            self.request.rate = self.gathered[RATE]
            with nogil:
                finite = self._apply_gathered()
        finite = AsynchronousChannel.flush(self, epoch) and finite
        self.gathered[CLOSED] = <double> (epoch + 1)
        self.gathered[VERSION] = <double> load(&self.store_words, S_VERSION)
        return bool(finite)


cdef class GatheringStep(AsynchronousStep):
    """A rank's pushes to shards that gather gradients."""

    cdef bint finished  # whether the epoch has ended
    cdef int64_t dropped  # rows since the last call
    cdef int64_t last_dropped  # the last push whose rows were counted

    def finish_steps(self):
        """See `Step.finish_steps`."""
        self.finished = True
        return 0

    @property
    def needs_pull(self):
        """See `Step.needs_pull`; the end of an epoch may have applied gathered gradients."""
        return self.finished and self.keys is None

    def dropped_rows(self):
        """See `Step.dropped_rows`."""
        result = self.dropped
        self.dropped = 0
        return result, 0

    cdef int _collect(self, int number) except -1 nogil:
        cdef bint waiting = self.waiting[number]
        cdef int status = AsynchronousStep._collect(self, number)
        cdef int64_t rows = <int64_t> (<ShardChannel> self._channels[number]).answer.notes[0]
        cdef int64_t sequence = (<ShardChannel> self._channels[number]).request.sequence
        # Rows are dropped if any shard has dropped them; they are counted once.
        if waiting and status == RAN and rows and sequence != self.last_dropped:
            self.last_dropped = sequence
            self.dropped += rows
        return status
