"""A window that a rank has mapped: whole vectors, or values at keys.

This module defines the order in which ranks write the words of a window while they hand over
gradients; the mode defines which rank waits for which.

Exchange. A rank fills its slot, writes ROWS and its ARRIVED, and counts itself in COUNT. The rank
that completes the count sets it back to 0; then no slot changes until DONE.
    One applies   if there is too little work to share, that rank sums all slots in rank order, uses
                  the mean, and writes the window's DONE.
    All apply     else it writes the window's ARRIVED. Each rank waits for that, sums its slice of
                  all slots in rank order, uses the mean, writes its own DONE, and counts itself in
                  COUNT again. The rank that completes this count sets it back and writes the
                  window's DONE.
All wait for the window's DONE, and no rank writes a slot before it. Only a word that is complete
rings, so that a sleeper is woken once. A crash anywhere leaves the others waiting until the fit is
stopped: before its count, for a rank that has not arrived; after it, for any rank that may be at
work (`Watch`). The step is half done then, and only the snapshot of the last closed epoch counts.

MEAN is an exchange whose mean goes to TOTAL, where it stays until every rank has arrived with what
comes next. Its notes have two sets of places: a rank writes the notes of k + 2 only after
DONE at k + 1, and a rank arrives there only once it has read the notes of k.

BROADCAST: a rank that arrives says that it has read what stood there before. Rank 0 waits for all
arrivals, writes TOTAL and then the window's DONE. A crash of rank 0 in between leaves the others
waiting.

By keys a slot has keys and their values (`KeySlots`): each rank merges what falls into its slice,
as it sums its slice of whole vectors. `KeyedParams` reads and updates the parameters.
"""
from libc.stdint cimport int64_t, uint16_t
from libc.string cimport memcpy

import numpy as np

from dps._kernels.reduce cimport BLOCK
from dps._runtime.shared.activity cimport PUSH as PUSHING, Activity
from dps._runtime.channel.base cimport ShardChannel
from dps._runtime.channel.key_slots cimport KeySlots
from dps._runtime.wire.message cimport (
    BAD_GRADIENT, BAD_UPDATE, BROADCAST, CHANGES, FULL, MEAN, NOTES, PULL, PULL_KEYS, PUSH,
    PUSH_KEYS, RAN, STOPPED
)
from dps._runtime.shared.words cimport (
    Header, R_ARRIVED, R_BEAT, R_DONE, R_RING, R_ROWS, S_VERSION, W_ARRIVED, W_COUNT, W_DONE,
    W_ONE_APPLIES, W_STOP, count_up, is_ready, load, rank_load, rank_set, rank_store, store,
    wait_for
)
from dps._runtime.keyed cimport KeyedParams

from dps._runtime.updates import bind
from dps.errors import TableFullError


cdef class MappedChannel(ShardChannel):
    """A channel in the memory of the shard's window.

    shard: which row of the account its shard has.
    first: where the shard's elements begin in the whole vector.
    slow_wait: ``slow_wait(field, word, value)`` goes on with a wait that has taken `tick` seconds:
        it knows deadlines and owners.
    activity: where waits, pushes and their bytes are counted.
    """

    def __init__(
        self, window, int rank, int shard, first, slow_wait, double tick, Activity activity
    ):
        spec, kept = window.spec, window.store
        width = kept.spec.key_width
        ShardChannel.__init__(self, spec.dtype, spec.size, spec.n_ranks, first, width)
        dtype = np.dtype(spec.dtype)
        self.window = window
        self.slots.room[0] = self.slots.room[1] = 0
        self.words = (<Header?> window.words).words
        self.store_words = (<Header?> kept.words).words
        self.rank = rank
        self.slots.own, self.slots.n = window.place(rank), len(spec.active)
        self.slots.ranks = <const int64_t*> self.keep(np.array(spec.active, np.int64))
        self.slice.place, self.slice.n = self.slots.own, self.slots.n
        self.shard = shard
        self.slow_wait = slow_wait
        self.tick = tick
        self.activity = activity
        self.params = self.keep(kept.params)
        self.state = self.keep(kept.state)
        self.slots.at = self.keep(window.slots)
        self.slots.stride = window.slots.shape[1]
        self.total = self.keep(window.total)
        self.notes = window.notes
        self.slice.start, self.slice.stop = window.slice(rank)
        self.one_applies = load(&self.words, W_ONE_APPLIES) != 0
        if self.one_applies:
            self.slice.start, self.slice.stop = 0, self.size
        if kept.update is not None:
            self.update = bind(kept.update, dtype, self.size, self._arrays)
        self.scratch.n = BLOCK
        if self.update is not None:
            width = self.slice.stop - self.slice.start
            self.scratch.n = max(self.scratch.n, min(self.update.most, width))
        self.scratch.at = self.keep(np.empty(self.scratch.n, dtype))
        self.slots.rows = <int64_t*> self.keep(np.zeros(self.slots.n, np.int64))
        self.ring.at = self.keep(window.ring)
        self.ring.rows = <int64_t*> self.keep(window.ring_rows)
        self.ring.stride, self.ring.places = window.ring.strides[0], len(window.ring)
        if self.key_width:
            self._bind_keys(window)

    def _bind_keys(self, window):
        self.key_slots = KeySlots(window)
        kept = window.store
        if kept.update is not None:
            arena = kept.spec.arena
            self.keyed = KeyedParams(
                kept.update, kept.params, kept.state, kept.since, kept.table,
                0 if arena is None else arena.table.expire,
            )
        parts = np.zeros((3, self.n_ranks), np.int64)
        self.mean.keys = <const int64_t**> self.keep(parts)
        self.mean.values = <const char**> (self.mean.keys + self.n_ranks)
        self.mean.counts = <int64_t*> (self.mean.values + self.n_ranks)

    cdef int begin(self, const char* given) except -1 nogil:
        cdef int64_t op = self.request.op
        cdef int i
        self.payload.given = given
        if op == PUSH or op == PUSH_KEYS:
            return self.push()
        if op == MEAN:
            for i in range(NOTES):
                self.notes[self.request.sequence % 2, self.rank, i] = self.request.notes[i]
            return self.arrive()
        if op == BROADCAST:
            self._arrived()
        return RAN

    cdef int finish(self, char* taken) except -1 nogil:
        cdef int64_t op = self.request.op
        self.answer.n_keys = 0
        if op == PUSH or op == PUSH_KEYS:
            return self.pushed(taken)
        if op == PULL or op == PULL_KEYS:
            return self.pull(taken)
        if op == MEAN:
            return self._finish_mean(taken)
        return self._finish_broadcast(taken)

    cdef bint by_keys(self) noexcept nogil:
        """True if the request has values at keys and not a whole vector."""
        return self.request.op == PUSH_KEYS or self.request.op == PULL_KEYS

    cdef int put(
        self, int place, const char* values, Py_ssize_t nbytes, int64_t rows, int64_t sequence
    ) except -1 nogil:
        memcpy(self.ring.at + place * self.ring.stride, values, nbytes)
        return self.has_come(place, rows, sequence)

    cdef int heartbeat(self) except -1 nogil:
        rank_store(
            &self.words, self.rank, R_BEAT, rank_load(&self.words, self.rank, R_BEAT) + 1
        )
        return 0

    cdef int has_come(self, int place, int64_t rows, int64_t sequence) noexcept nogil:
        """Note that a message of a ring has arrived in its place."""
        self.ring.rows[place] = rows
        rank_store(&self.words, self.rank, R_RING, sequence)
        return RAN

    cdef int give(self, const char* part, char* taken) noexcept nogil:
        """Copy a vector to the whole one, or send it on a wire.

        Values by keys are requested with the next batch's keys.
        """
        if self.by_keys():
            return self.answer_with(NULL, 0)
        if taken is NULL:
            return self.answer_with(part, self.size * self.numbers.itemsize)
        self._place(part, taken)
        return RAN

    cdef int answer_with(self, const char* result, Py_ssize_t n) noexcept nogil:
        """Set the answer's payload to n bytes in some memory."""
        self.payload.result = result
        self.answer.nbytes = n
        return RAN

    cdef int wait(self, int field, int word, int64_t value) except -1 nogil:
        """Wait for a field of every rank, or for a word if the field is -1."""
        cdef int64_t known, began
        if is_ready(&self.words, field, word, value):  # the last rank to arrive reads no clock
            return 0
        known, began = self.activity.waited_so_far(), self.activity.wait_begins()
        if wait_for(&self.words, field, word, value, self.tick) != 0:
            with gil:
                self.slow_wait(field, word, value)
        self.activity.wait_ends(began, known)
        return 0

    cdef char* own_slot(self) noexcept nogil:
        """Start of the rank's slot."""
        return self.slots.at + self.slots.own * self.slots.stride * self.numbers.itemsize

    cdef const char* _own(self) noexcept nogil:
        """Return the whole vector if this rank is the only one and needs no slot."""
        if self.n_ranks == 1 and self.payload.given is not NULL and not self.by_keys():
            return self.payload.given + self.first * self.numbers.itemsize
        return NULL

    cdef int reserve(self, bint late, Py_ssize_t nbytes) except -1 nogil:
        """Allocate a slot's memory for some bytes of values and for their keys."""
        if nbytes > self.slots.room[late]:
            with gil:
                self.slots.room[late] = self.window.grow(
                    self.slots.own + late * self.slots.n, nbytes
                )
        return 0

    cdef void count(self, Py_ssize_t nbytes) noexcept nogil:
        """Count a push, unless it only adds to the sum of a host."""
        if self.shard >= 0:
            self.activity.push(self.shard, nbytes)

    # A payload is a whole vector, or values at keys. A mode fills a slot, sums slots, and gives an
    # answer, whatever it is.

    cdef Py_ssize_t given_size(self) noexcept nogil:
        """Number of elements that the rank hands over."""
        return self.picks.n * self.key_width if self.by_keys() else self.size

    cdef Py_ssize_t given_bytes(self) noexcept nogil:
        """Bytes of a whole vector that the rank hands over, as received here."""
        if self.payload.given is NULL and self.request.coding != FULL:
            return self.size * sizeof(uint16_t)
        return self.size * self.numbers.itemsize

    cdef int fill(self, int n_cuts) except -1 nogil:
        """Write the gradient to the rank's slot if it is finite; by keys cut into `n_cuts` slices.
        """
        cdef char* slot = self.own_slot()
        cdef bint finite
        if self.by_keys():
            return self._fill_keys(slot, n_cuts)
        self.reserve(False, self.size * self.numbers.itemsize)
        self.count(self.given_bytes())
        if self.payload.given is NULL:  # it has been received there
            finite = self.numbers.is_finite(slot, self.size)
        else:
            finite = self.numbers.copy_checked(
                slot, self.payload.given + self.first * self.numbers.itemsize, self.size
            )
        return RAN if finite else BAD_GRADIENT

    cdef int _fill_keys(self, char* slot, int n_cuts) except -1 nogil:
        cdef const char* values = self.values_of_picks()
        cdef bint finite
        if self.picks.n > self.key_slots.stride:
            with gil:
                raise TableFullError(
                    f"a batch touches {self.picks.n} rows of a shard's part of a table, which has "
                    f"room for {self.keyed.table.n_rows}: raise max_embeddings, or make batches "
                    "smaller"
                )
        self.reserve(False, self.picks.n * self.key_bytes)
        self.count(self.picks.n * (self.key_bytes + 8))
        finite = self.key_slots.fill(
            self.slots.own, &self.picks, values, n_cuts, slot,
            0 if self.keyed is None else self.keyed.table.n_homes,
        )
        return RAN if finite else BAD_GRADIENT

    cdef int push(self) except -1 nogil:
        """Hand over a gradient: by default the first half of an exchange."""
        return self.arrive()

    cdef int arrive(self) except -1 nogil:
        """The first half of an exchange."""
        cdef const char* own = self._own()
        cdef int status
        if load(&self.words, W_STOP) != 0:
            return STOPPED
        if own is NULL:
            status = self.fill(self.slots.n)
        else:
            status = RAN if self.numbers.is_finite(own, self.size) else BAD_GRADIENT
            self.count(self.size * self.numbers.itemsize)
        if status != RAN:
            return status
        rank_set(&self.words, self.rank, R_ROWS, self.request.rows)
        if not self._arrived() or not self.one_applies:
            return RAN
        self.sum_rows()
        if not self.reduce(self.slots.rows, self.slots.n):
            return BAD_UPDATE
        self._used()
        store(&self.words, W_DONE, self.request.sequence)
        return RAN

    cdef bint _arrived(self) noexcept nogil:
        """Record the arrival of this rank; True for the last one."""
        rank_set(&self.words, self.rank, R_ARRIVED, self.request.sequence)
        if not count_up(&self.words, W_COUNT, self.slice.n):
            return False
        if not self.one_applies or self.request.op == BROADCAST:
            store(&self.words, W_ARRIVED, self.request.sequence)
        return True

    cdef int await_arrivals(self) except -1 nogil:
        """Wait until all ranks have arrived."""
        return self.wait(-1, W_ARRIVED, self.request.sequence)

    cdef void sum_rows(self) noexcept nogil:
        """Sum the rows of all slots."""
        cdef int slot
        self.slots.all_rows = 0
        for slot in range(self.slots.n):
            self.slots.rows[slot] = rank_load(&self.words, <int> self.slots.ranks[slot], R_ROWS)
            self.slots.all_rows += self.slots.rows[slot]

    cdef double divisor(self) noexcept nogil:
        """Return the divisor of a sum."""
        return <double> self.slots.all_rows

    cdef bint reduce(self, const int64_t* rows, int n_slots) except -1 nogil:
        """Sum and use this rank's slice of the slots with rows; True if all is finite."""
        cdef const char* slots = self._own()
        cdef Py_ssize_t first = self.slice.start, last, itemsize = self.numbers.itemsize
        cdef bint good = True
        if self.by_keys():
            self.begin_epoch()
            return self.use_keys(self._merge(rows, n_slots))
        if slots is NULL:
            slots = self.slots.at
        while first < self.slice.stop:  # the gradients stay in the cache while they are used
            last = min(first + self.scratch.n, self.slice.stop)
            self.numbers.sum_slots(
                slots + first * itemsize, self.slots.stride, rows, n_slots, self.scratch.at,
                last - first, self.divisor(),
            )
            if self.request.op == MEAN:
                good &= self._to_total(first, last)
            else:
                good &= self.use(first, last)
            first = last
        return good

    cdef int reduce_slice(self) except -1 nogil:
        """The second half of an exchange: process this rank's slice, if it has one, and wait."""
        if self.one_applies:
            return self.await_done()
        self.await_arrivals()
        self.sum_rows()
        if not self.reduce(self.slots.rows, self.slots.n):
            return BAD_UPDATE
        if self.rank == 0:
            self._used()
        return self.done()

    cdef void _used(self) noexcept nogil:
        """Count the update, if parameters were updated."""
        if self.request.op != MEAN:
            store(&self.store_words, S_VERSION, self.request.step)

    cdef int done(self) except -1 nogil:
        """Record that this rank has used its slice, and wait for all."""
        rank_set(&self.words, self.rank, R_DONE, self.request.sequence)
        if count_up(&self.words, W_COUNT, self.slice.n):
            store(&self.words, W_DONE, self.request.sequence)
        return self.await_done()

    cdef int await_done(self) except -1 nogil:
        """Wait until the exchange is over."""
        self.wait(-1, W_DONE, self.request.sequence)
        self.activity.spend(PUSHING, self.shard)
        return RAN

    cdef int use(self, Py_ssize_t first, Py_ssize_t last) except -1 nogil:
        """Use elements first .. last of the mean, in scratch; True if all is finite."""
        return self._to_total(first, last)

    cdef bint _to_total(self, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
        cdef Py_ssize_t itemsize = self.numbers.itemsize
        memcpy(self.total + first * itemsize, self.scratch.at, (last - first) * itemsize)
        return True

    cdef bint takes(self, int64_t coding) noexcept nogil:
        """True if the mode supports a `Coding`: by default if the answer to a push has parameters.
        """
        return coding == FULL or coding == CHANGES

    cdef int pull(self, char* taken) except -1 nogil:
        """Take the parameters; no rank writes those at keys before this rank's next push."""
        if self.by_keys():
            self.begin_epoch()
            return self.gather_keys(self.request.step, taken)
        self.answer.version = load(&self.store_words, S_VERSION)
        return self.give(self.params, taken)

    cdef int pushed(self, char* taken) except -1 nogil:
        """Take the result of the exchange."""
        cdef int status = self.reduce_slice()
        return self.give(self.total, taken) if status == RAN else status

    cdef int _finish_mean(self, char* taken) except -1 nogil:
        cdef int64_t parity = self.request.sequence % 2
        cdef int rank, i, status = self.reduce_slice()
        for i in range(NOTES):
            self.answer.notes[i] = self.notes[parity, 0, i]
            for rank in range(1, self.n_ranks):
                self.answer.notes[i] += self.notes[parity, rank, i]
        return self.give(self.total, taken) if status == RAN else status

    cdef int _finish_broadcast(self, char* taken) except -1 nogil:
        cdef int64_t parity = self.request.sequence % 2
        cdef char* slot = self.own_slot()
        cdef bint finite
        cdef int i
        if self.rank == 0:
            self.await_arrivals()
            if self.payload.given is NULL:
                finite = self.numbers.copy_checked(self.total, slot, self.size)
            else:
                finite = self.numbers.copy_checked(
                    self.total, self.payload.given + self.first * self.numbers.itemsize, self.size
                )
            if not finite:
                return BAD_UPDATE
            for i in range(NOTES):
                self.notes[parity, 0, i] = self.request.notes[i]
            store(&self.words, W_DONE, self.request.sequence)
        self.await_done()
        for i in range(NOTES):
            self.answer.notes[i] = self.notes[parity, 0, i]
        return self.give(self.total, taken)

    # By keys.

    cdef bint takes_ids(self) noexcept nogil:
        """True if keys may be ids of a table."""
        return self.keyed is not None and self.keyed.table.n_rows > 0

    cdef int begin_epoch(self) except -1 nogil:
        """Set the learning rates of the request's epoch."""
        if self.keyed is not None and self.request.epoch != self.keyed.epoch:
            with gil:
                self.keyed.begin_epoch(self.request.epoch, *self.rates_of_epoch())
        return 0

    cdef tuple rates_of_epoch(self):
        """See `KeyedParams.begin_epoch`."""
        return self.keyed.rates.of_epoch(self.request.epoch)

    cdef int gather_keys(self, int64_t now, char* taken) except -1 nogil:
        """Read the parameters at the keys after bringing them up to date."""
        cdef Py_ssize_t nbytes = self.picks.n * self.key_bytes
        cdef char* out = taken
        if taken is NULL or self.picks.at is not NULL:
            out = self.values.fit(nbytes)
        self.keyed.gather(self.picks.keys, self.picks.n, now, out)
        if taken is NULL:
            return self.answer_with(out, nbytes)
        if out != taken:
            self.numbers.scatter(taken, out, self.picks.at, self.picks.n, self.key_width)
        return RAN

    cdef const char* values_of_picks(self) except? NULL nogil:
        """Return the given values at the picks, side by side."""
        if self.payload.given is NULL:  # it has been received
            return self.values.at
        if self.picks.at is NULL:
            return self.payload.given
        self.values.fit(self.picks.n * self.key_bytes)
        self.numbers.pick(
            self.values.at, self.payload.given, self.picks.at, self.picks.n, self.key_width
        )
        return self.values.at

    cdef Py_ssize_t _merge(self, const int64_t* rows, int n_slots) except -1 nogil:
        """Sum this rank's slice of the slots with rows; return the number of keys."""
        return self.key_slots.merge(
            self.slots.at, self.slots.stride, rows, n_slots, self.slice.place, self.divisor()
        )

    cdef int use_keys(self, Py_ssize_t n) except -1 nogil:
        """Use the n keys and means of this rank's slice; True if all is finite."""
        return True

    def finish_steps(self, int64_t clock):
        """Record that the rank takes no more steps in this epoch, whose end is at `clock`."""

    def flush(self, int64_t epoch):
        """Apply pending lazy updates while no rank pushes; return whether all is finite.

        In synchronous modes nothing is pending: the last step of an epoch has applied it.
        """
        return True
