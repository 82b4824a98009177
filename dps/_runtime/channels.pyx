"""A rank's channel to one shard: what a step does there, in mapped memory or over a wire.

Owns the order in which the words of a window are written while ranks hand vectors over; who waits
for whom in a push is its mode's (synchronous.pyx, allreduce.pyx, asynchronous.pyx). It must not
know models, data, or that there are other shards.

A step has two halves. ``begin`` hands over what the rank gives, ``finish`` waits and takes what
comes of it; between them a rank begins at its other shards. The same two halves run at the shard
on behalf of a rank that is far (service.pyx), where what is given lies in the rank's slot already.

Exchange: two barriers. A rank fills its slot, then ARRIVED. When all have arrived it sums its slice
of all slots in rank order and uses the mean, then DONE. When all are done every slice has been
used. Nobody writes a slot before DONE of all, nor uses a slice before ARRIVED of all. A crash
before ARRIVED, or between ARRIVED and DONE, leaves the others waiting at their barrier until the
fit is stopped; what was written by then is half a step, and only the snapshot of the last closed
epoch counts.

MEAN is an exchange whose mean goes to TOTAL, where it stays until every rank has arrived with what
comes next. Its notes have two sets of places: a rank writes those of k + 2 only after DONE of all
at k + 1, and nobody has arrived there who had not read those of k.

BROADCAST: the others have nothing to do, so they are DONE as soon as they have ARRIVED, which says
that they have read what stood there before. Rank 0 waits for that, writes TOTAL, and then is DONE:
for the others it is one barrier. A crash of rank 0 in between leaves them waiting.
"""
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy, memmove

import numpy as np

from dps._kernels.buffer cimport Buffer
from dps._kernels.keys cimport KeyList, need, next_batch
from dps._kernels.lazy cimport flush, gather
from dps._kernels.reduce cimport BLOCK
from dps._kernels.table cimport NOT_YET, NOWHERE, TableRows, draw, expire, find, make
from dps._kernels.typed_ops cimport typed_ops
from dps._runtime.activity cimport PUSH as PUSHING, WIDTH, Activity
from dps._runtime.message cimport (
    ACCOUNT, Answer, BAD_GRADIENT, BAD_UPDATE, BROADCAST, CALL, MEAN, NOTES, PULL, PULL_KEYS, PUSH,
    PUSH_KEYS, RAISED, RAN, Request, RING, STOPPED
)
from dps._runtime.wire cimport PARTS, Wire
from dps._runtime.words cimport (
    Header, R_ARRIVED, R_BEAT, R_DONE, R_RING, R_ROWS, S_VERSION, W_ANSWERED, W_STOP, is_ready,
    load, rank_load, rank_store, store, wait_for
)

from dps._runtime.updates import bind
from dps.errors import TableFullError


cdef extern from "waiting.h" nogil:
    int64_t dps_nanoseconds()

#: Nanoseconds after which a far rank gives account of itself again.
cdef int64_t ACCOUNT_EVERY = 250000000


cdef class ShardChannel:
    """A rank's channel to one shard.

    Parameters
    ----------
    dtype : str
    size : int
        Elements of the shard.
    n_ranks : int
    ranges : sequence of (int, int)
        The shard's elements in the whole vector.
    key_width : int
        Elements that a key stands for, of which the ranges are multiples; 0: none go by keys.
    """

    def __init__(self, dtype, Py_ssize_t size, int n_ranks, ranges, Py_ssize_t key_width):
        self._arrays = []
        self.numbers = typed_ops(dtype == "float32")
        self.size = size
        self.n_ranks = n_ranks
        self.n_ranges = len(ranges)
        pairs = np.array(ranges, np.int64).reshape(-1, 2)
        self.ranges = <const int64_t*> self.keep(pairs)
        if key_width:
            if size % key_width or (pairs % key_width).any():
                raise ValueError(f"{ranges} are no ranges of keys of {key_width} elements")
            pairs = pairs // key_width
            lengths = pairs[:, 1] - pairs[:, 0]
            self.key_ranges = <const int64_t*> self.keep(pairs)
            self.key_offsets = <const int64_t*> self.keep(np.cumsum(lengths) - lengths)
            self.n_keys = size // key_width
        self.key_width, self.key_bytes = key_width, key_width * self.numbers.itemsize
        self.values, self.pick_keys, self.pick_at = Buffer(), Buffer(), Buffer()

    cdef char* keep(self, array) except? NULL:
        """Keep an array alive; where it begins."""
        self._arrays.append(array)
        return <char*> <uintptr_t> array.ctypes.data

    cdef void pick_all(self, int64_t* keys, Py_ssize_t n) noexcept nogil:
        """The shard has all of these keys, under the same numbers."""
        self.picks.keys, self.picks.at, self.picks.n = keys, NULL, n

    cdef int pick_none(self, Py_ssize_t most) except -1 nogil:
        """The shard has none of so many keys, up to now."""
        self.picks.keys = <int64_t*> self.pick_keys.fit(most * sizeof(int64_t))
        self.picks.at = <int64_t*> self.pick_at.fit(most * sizeof(int64_t))
        self.picks.n = 0
        return 0

    cdef int begin(self, const char* given) except -1 nogil:
        """Hand over what `request` says and the shard's part of a whole vector."""
        return STOPPED

    cdef int finish(self, char* taken) except -1 nogil:
        """Wait, and put what comes of it into a whole vector, and into `answer`."""
        return STOPPED

    cdef int say(self) except -1 nogil:
        """Say that the rank gets on, where it hands nothing over."""
        return 0

    cdef int put(
        self, int place, const char* values, Py_ssize_t n, int64_t rows, int64_t sequence
    ) except -1 nogil:
        """Put a message of a ring into its place in the shard's window, and say so."""
        return STOPPED

    cdef void _place(self, const char* part, char* whole) noexcept nogil:
        """Copy the shard's part into the whole vector, unless it lies there."""
        cdef Py_ssize_t r, n
        if part == whole:
            return
        for r in range(self.n_ranges):
            n = (self.ranges[2 * r + 1] - self.ranges[2 * r]) * self.numbers.itemsize
            memcpy(whole + self.ranges[2 * r] * self.numbers.itemsize, part, n)
            part += n

    cdef void _globalise(self, int64_t* keys, Py_ssize_t n) noexcept nogil:
        """Make the whole vector's keys of the shard's."""
        cdef Py_ssize_t i, low, high, middle
        for i in range(n):
            low, high = 0, self.n_ranges - 1
            while low < high:  # the last range that begins at the key or before
                middle = (low + high + 1) // 2
                if self.key_offsets[middle] <= keys[i]:
                    low = middle
                else:
                    high = middle - 1
            keys[i] = <int64_t> (self.key_ranges[2 * low] + keys[i] - self.key_offsets[low])


cdef class MappedChannel(ShardChannel):
    """A channel in the memory of the shard's window.

    Parameters
    ----------
    window : Window
    rank : int
    shard : int
        Which row of the account its shard has.
    ranges : sequence of (int, int)
    until : callable
        ``until(field, word, value)`` goes on with a wait that has taken `tick` seconds: it knows
        deadlines and owners.
    tick : float
    activity : Activity
        Where waits, pushes and their bytes are counted.
    """

    def __init__(self, window, int rank, int shard, ranges, until, double tick, Activity activity):
        spec, kept = window.spec, window.store
        width = kept.spec.key_width
        ShardChannel.__init__(self, spec.dtype, spec.size, spec.n_ranks, ranges, width)
        dtype = np.dtype(spec.dtype)
        self.window = window
        self.room[0] = self.room[1] = 0
        self.words = (<Header?> window.words).words
        self.kept = (<Header?> kept.words).words
        self.rank = rank
        self.place, self.n_places = window.place(rank), len(spec.active)
        self.shard = shard
        self.until = until
        self.tick = tick
        self.activity = activity
        self.params = self.keep(kept.params)
        self.state = self.keep(kept.state)
        self.slots = self.keep(window.slots)
        self.slot_stride = window.slots.shape[1]
        self.total = self.keep(window.total)
        self.notes = window.notes
        self.start, self.stop = window.slice(rank)
        if kept.update is not None:
            self.update = bind(kept.update, dtype, self.size, self._arrays)
        self.block = BLOCK
        if self.update is not None:
            self.block = max(self.block, min(self.update.most, self.stop - self.start))
        self.scratch = self.keep(np.empty(self.block, dtype))
        self.counts = <int64_t*> self.keep(np.zeros(self.n_ranks, np.int64))
        self.ring, self.ring_rows = self.keep(window.ring), <int64_t*> self.keep(window.ring_rows)
        self.ring_stride, self.ring_places = window.ring.strides[0], len(window.ring)
        if self.key_width:
            self._bind_keys(window)

    def _bind_keys(self, window):
        self.epoch = -1
        self.slice_keys = window.slice_width // self.key_width
        self.key_stride = window.keys.shape[1]
        self.held.size, self.held.width = self.size, self.key_width
        self.held.params = self.params
        self.held.state = self.state
        self.held.since = <int64_t*> self.keep(window.store.since)
        self.slot_keys = <int64_t*> self.keep(window.keys)
        self.slot_counts = <int64_t*> self.keep(window.key_counts)
        self.total_keys = <int64_t*> self.keep(window.total_keys)
        self.total_counts = <int64_t*> self.keep(window.total_counts)
        self.merged, self.sums, self.found = KeyList(window.store.n_keys), Buffer(), Buffer()
        if window.store.table is not None:
            self.table = (<TableRows?> window.store.table).table
            self.lasting = window.store.spec.arena.table.expire * window.store.update.rates.updates
        if window.store.update is not None:
            self.rates = window.store.update.rates
            self.lazy = window.store.update.lazily(window.spec.dtype)
        parts = np.zeros((3, self.n_ranks), np.int64)
        self.mean.keys = <const int64_t**> self.keep(parts)
        self.mean.values = <const char**> (self.mean.keys + self.n_ranks)
        self.mean.counts = <int64_t*> (self.mean.values + self.n_ranks)

    cdef int begin(self, const char* given) except -1 nogil:
        cdef int64_t op = self.request.op
        cdef int i
        self.given = given
        if op == PUSH:
            return self.push()
        if op == PUSH_KEYS:
            return self.push_keys()
        if op == MEAN:
            for i in range(NOTES):
                self.notes[self.request.sequence % 2, self.rank, i] = self.request.notes[i]
            return self.arrive()
        if op == BROADCAST:
            rank_store(&self.words, self.rank, R_ARRIVED, self.request.sequence)
        return RAN

    cdef int finish(self, char* taken) except -1 nogil:
        cdef int64_t op = self.request.op
        self.answer.n_keys = 0
        if op == PUSH:
            return self.pushed(taken)
        if op == PULL_KEYS:
            return self.pull_keys(taken)
        if op == PUSH_KEYS:
            return self.pushed_keys()
        if op == PULL:
            self.answer.version = load(&self.kept, S_VERSION)
            return self._give(self.params, taken)
        if op == MEAN:
            return self._finish_mean(taken)
        return self._finish_broadcast(taken)

    cdef int put(
        self, int place, const char* values, Py_ssize_t n, int64_t rows, int64_t sequence
    ) except -1 nogil:
        memcpy(self.ring + place * self.ring_stride, values, n * self.numbers.itemsize)
        return self.has_come(place, rows, sequence)

    cdef int say(self) except -1 nogil:
        rank_store(
            &self.words, self.rank, R_BEAT, rank_load(&self.words, self.rank, R_BEAT) + 1
        )
        return 0

    cdef int has_come(self, int place, int64_t rows, int64_t sequence) noexcept nogil:
        """A message of a ring lies in its place."""
        self.ring_rows[place] = rows
        rank_store(&self.words, self.rank, R_RING, sequence)
        return RAN

    cdef int _give(self, const char* part, char* taken) noexcept nogil:
        """Put a vector where it is wanted: in the whole one, or on a wire."""
        if taken is NULL:
            return self.answer_with(part, self.size * self.numbers.itemsize)
        self._place(part, taken)
        return RAN

    cdef int answer_with(self, const char* result, Py_ssize_t n) noexcept nogil:
        """The answer's payload is n bytes that lie somewhere."""
        self.result = result
        self.answer.nbytes = n
        return RAN

    cdef int wait(self, int field, int word, int64_t value) except -1 nogil:
        """Wait for a field of every rank, or for a word where the field is -1."""
        cdef int64_t known, began
        if is_ready(&self.words, field, word, value):  # who comes last reads no clock
            return 0
        known, began = self.activity.waited_so_far(), self.activity.wait_begins()
        if wait_for(&self.words, field, word, value, self.tick) != 0:
            with gil:
                self.until(field, word, value)
        self.activity.wait_ends(began, known)
        return 0

    # Whole vectors.

    cdef const char* _own(self) noexcept nogil:
        """What is given, where this rank is the only one and need not put it in its slot."""
        if self.n_ranks == 1 and self.n_ranges == 1 and self.given is not NULL:
            return self.given + self.ranges[0] * self.numbers.itemsize
        return NULL

    cdef bint _deliver(self, const char* whole, char* part) noexcept nogil:
        """Copy the shard's part of a whole vector; whether it is finite."""
        cdef Py_ssize_t r, n
        cdef bint finite = True
        for r in range(self.n_ranges):
            n = self.ranges[2 * r + 1] - self.ranges[2 * r]
            finite &= self.numbers.copy_checked(
                part, whole + self.ranges[2 * r] * self.numbers.itemsize, n
            )
            part += n * self.numbers.itemsize
        return finite

    cdef int reserve(self, bint late, Py_ssize_t nbytes) except -1 nogil:
        """See that so many bytes of values, and their keys, may be written in a slot."""
        if nbytes > self.room[late]:
            with gil:
                self.room[late] = self.window.grow(self.rank + late * self.n_ranks, nbytes)
        return 0

    cdef int _fill(self) except -1 nogil:
        """Have what is given in the rank's slot, if it is finite."""
        cdef char* slot = self.slots + self.rank * self.slot_stride * self.numbers.itemsize
        cdef bint finite
        self.reserve(False, self.size * self.numbers.itemsize)
        if self.given is NULL:  # it has been received there
            finite = self.numbers.is_finite(slot, self.size)
        else:
            finite = self._deliver(self.given, slot)
        return RAN if finite else BAD_GRADIENT

    cdef int arrive(self) except -1 nogil:
        """The first half of an exchange."""
        cdef const char* own = self._own()
        cdef int status
        if load(&self.words, W_STOP) != 0:
            return STOPPED
        if own is NULL:
            status = self._fill()
        else:
            status = RAN if self.numbers.is_finite(own, self.size) else BAD_GRADIENT
        if status != RAN:
            return status
        if self.shard >= 0:  # what is summed on a host is not a push yet
            self.activity.push(self.shard, self.size * self.numbers.itemsize)
        rank_store(&self.words, self.rank, R_ROWS, self.request.rows)
        rank_store(&self.words, self.rank, R_ARRIVED, self.request.sequence)
        return RAN

    cdef int64_t _await(self) except -1 nogil:
        """Wait for what all ranks give; the rows behind it."""
        cdef int64_t total = 0
        cdef int rank
        self.wait(R_ARRIVED, 0, self.request.sequence)
        for rank in range(self.n_ranks):
            self.counts[rank] = rank_load(&self.words, rank, R_ROWS)
            total += self.counts[rank]
        self.rows = total
        return total

    cdef double divisor(self) noexcept nogil:
        """What a sum is divided by."""
        return <double> self.rows

    cdef int share(self) except -1 nogil:
        """The second half of an exchange: work on this rank's slice, then wait for all."""
        cdef const char* own = self._own()
        cdef const char* slots = own
        cdef Py_ssize_t first = self.start, last, itemsize = self.numbers.itemsize
        cdef int good = True
        self._await()
        if own is NULL:
            slots = self.slots
        while first < self.stop:  # what has become of the gradients stays in cache
            last = min(first + self.block, self.stop)
            self.numbers.sum_slots(
                slots + first * itemsize, self.slot_stride, self.counts, self.n_ranks,
                self.scratch, last - first, self.divisor(),
            )
            if self.request.op == MEAN:
                memcpy(self.total + first * itemsize, self.scratch, (last - first) * itemsize)
            else:
                good &= self.use(first, last)
            first = last
        if not good:
            return BAD_UPDATE
        if self.rank == 0 and self.request.op != MEAN:
            store(&self.kept, S_VERSION, self.request.step)
        return self.done()

    cdef int done(self) except -1 nogil:
        """This rank has nothing left to do: wait until all have."""
        rank_store(&self.words, self.rank, R_DONE, self.request.sequence)
        self.wait(R_DONE, 0, self.request.sequence)
        self.activity.spend(PUSHING, self.shard)
        return RAN

    cdef int use(self, Py_ssize_t first, Py_ssize_t last) except -1 nogil:
        """Use elements first .. last of the mean, in scratch; whether all is finite."""
        memcpy(
            self.total + first * self.numbers.itemsize, self.scratch,
            (last - first) * self.numbers.itemsize,
        )
        return True

    cdef int push(self) except -1 nogil:
        """Hand a gradient over, as the mode has it."""
        return self.arrive()

    cdef int pushed(self, char* taken) except -1 nogil:
        """Take what comes of it."""
        cdef int status = self.share()
        return self._give(self.total, taken) if status == RAN else status

    cdef int _finish_mean(self, char* taken) except -1 nogil:
        cdef int64_t parity = self.request.sequence % 2
        cdef int rank, i, status = self.share()
        for i in range(NOTES):
            self.answer.notes[i] = self.notes[parity, 0, i]
            for rank in range(1, self.n_ranks):
                self.answer.notes[i] += self.notes[parity, rank, i]
        return self._give(self.total, taken) if status == RAN else status

    cdef int _finish_broadcast(self, char* taken) except -1 nogil:
        cdef int64_t parity = self.request.sequence % 2
        cdef char* slot = self.slots + self.rank * self.slot_stride * self.numbers.itemsize
        cdef bint finite
        cdef int i
        if self.rank == 0:
            self.wait(R_ARRIVED, 0, self.request.sequence)
            if self.given is NULL:
                finite = self.numbers.copy_checked(self.total, slot, self.size)
            else:
                finite = self._deliver(self.given, self.total)
            if not finite:
                return BAD_UPDATE
            for i in range(NOTES):
                self.notes[parity, 0, i] = self.request.notes[i]
        self.done()
        for i in range(NOTES):
            self.answer.notes[i] = self.notes[parity, 0, i]
        return self._give(self.total, taken)

    # Sparse vectors.

    cdef int begin_epoch(self) except -1 nogil:
        """Have the learning rates of the request's epoch."""
        if self.request.epoch != self.epoch and self.lazy is not None:
            with gil:
                self.lazy.begin(*self.rates.of_epoch(self.request.epoch))
        self.epoch = self.request.epoch
        return 0

    cdef int gather_keys(self, int64_t now, char* taken) except -1 nogil:
        """Read the parameters at the keys, brought up to date."""
        cdef Py_ssize_t nbytes = self.picks.n * self.key_bytes, i, n
        cdef const int64_t* keys = self.picks.keys
        cdef const int64_t* new
        cdef char* out = taken
        if taken is NULL or self.picks.at is not NULL:
            out = self.values.fit(nbytes)
        if self.table.n_rows:
            n = self.find_rows()
            keys = <int64_t*> self.found.at
        gather(&self.lazy.lazy, self.numbers.single, &self.held, keys, self.picks.n, now, out)
        if self.table.n_rows:
            new = keys + self.picks.n
            for i in range(n):
                draw(&self.table, -1 - self.picks.keys[new[i]], out + new[i] * self.key_bytes)
        if taken is NULL:
            return self.answer_with(out, nbytes)
        if out != taken:
            self.numbers.scatter(taken, out, self.picks.at, self.picks.n, self.key_width)
        return RAN

    # Rows of a table. An id that has none reads as the row that it would have, and gets it with its
    # first gradient: where ranks wait for each other from the rank that has charge of its slice,
    # else from whoever comes first.

    cdef Py_ssize_t find_rows(self) except -1 nogil:
        """Where the picks lie, in `found`; behind that, the places of those that have no row."""
        cdef int64_t* rows = <int64_t*> self.found.fit(2 * self.picks.n * sizeof(int64_t))
        cdef Py_ssize_t i, n = 0
        for i in range(self.picks.n):
            rows[i] = self.picks.keys[i]
            if rows[i] < 0:
                rows[i] = find(&self.table, -1 - rows[i])
                if rows[i] == NOWHERE:
                    rows[i] = 0
                    rows[self.picks.n + n] = i
                    n += 1
        return n

    cdef Py_ssize_t make_rows(
        self, int64_t* keys, char* values, Py_ssize_t n, int64_t now
    ) except -1 nogil:
        """Put rows in place of ids, and leave out those that get none; how many are left."""
        cdef Py_ssize_t i, left = 0
        cdef int64_t row
        if self.table.n_rows == 0:
            return n
        for i in range(n):
            row = keys[i]
            if row < 0:
                row = make(&self.table, -1 - row, now)
                if row == NOT_YET:
                    continue
                if row < 0:
                    with gil:
                        raise TableFullError(
                            f"a table's part of {self.table.n_rows} rows has no room for another "
                            "id near its place: raise max_rows to 1.5 times the rows that there "
                            "will be, or use min_count or expire"
                        )
            keys[left] = row
            if left < i:
                memcpy(values + left * self.key_bytes, values + i * self.key_bytes, self.key_bytes)
            left += 1
        return left

    cdef bint flush_keys(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil:
        """Bring elements start .. stop up to date, but for rows of a table that are not there."""
        cdef Py_ssize_t behind = min(stop // self.key_width, self.table.n_rows), first
        cdef Py_ssize_t last = start // self.key_width
        cdef bint finite = True
        while last < behind:
            first = last
            while first < behind and self.table.ids[first] <= 0:
                first += 1
            last = first
            while last < behind and self.table.ids[last] > 0:
                last += 1
            finite &= self._flush(first * self.key_width, last * self.key_width, now)
        return self._flush(max(start, self.table.n_rows * self.key_width), stop, now) and finite

    cdef bint _flush(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil:
        if start >= stop:
            return True
        return flush(&self.lazy.lazy, self.numbers.single, &self.held, start, stop, now)

    cdef void expire_rows(self, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
        """Give up rows of first .. last, which are whole regions, that have not been touched."""
        last = min(last, self.table.n_rows)
        if first < last:
            expire(&self.table, first, last, self.request.step - self.lasting + 1)

    cdef const char* values_of_picks(self) except? NULL nogil:
        """What is given at the picks, side by side."""
        if self.given is NULL:  # it has been received
            return self.values.at
        if self.picks.at is NULL:
            return self.given
        self.values.fit(self.picks.n * self.key_bytes)
        self.numbers.pick(self.values.at, self.given, self.picks.at, self.picks.n, self.key_width)
        return self.values.at

    cdef bint deliver_keys(self, Py_ssize_t n_ranks) except -1 nogil:
        """Fill the slot with keys and values; whether these are finite."""
        cdef const char* values = self.values_of_picks()
        if self.picks.n > self.key_stride:
            with gil:
                raise TableFullError(
                    f"a batch touches {self.picks.n} rows of a shard's part of a table, which has "
                    f"room for {self.table.n_rows}: raise max_rows, or make batches smaller"
                )
        self.reserve(False, self.picks.n * self.key_bytes)
        if self.shard >= 0:  # what is summed on a host is not a push yet
            self.activity.push(self.shard, self.picks.n * (self.key_bytes + 8))
        return self.numbers.deliver(
            self.picks.keys, self.picks.n, values, self.slice_keys, n_ranks,
            self.slot_keys + self.rank * self.key_stride,
            self.slots + self.rank * self.slot_stride * self.numbers.itemsize,
            self.slot_counts + self.rank * self.n_ranks, self.key_width, self.table.n_homes,
        )

    cdef int pull_keys(self, char* taken) except -1 nogil:
        """Nobody writes what is read here before this rank's next push."""
        self.begin_epoch()
        return self.gather_keys(self.request.step, taken)

    cdef int push_keys(self) except -1 nogil:
        """The first half of an exchange by keys."""
        self.begin_epoch()
        if load(&self.words, W_STOP) != 0:
            return STOPPED
        if not self.deliver_keys(self.n_ranks):
            return BAD_GRADIENT
        rank_store(&self.words, self.rank, R_ROWS, self.request.rows)
        rank_store(&self.words, self.rank, R_ARRIVED, self.request.sequence)
        return RAN

    cdef Py_ssize_t merge_keys(self) except -1 nogil:
        """Wait for what all ranks give; how many keys there are in this rank's slice."""
        cdef Py_ssize_t most = 0
        cdef int rank
        self._await()
        for rank in range(self.n_ranks):
            if self.counts[rank]:
                most += self.slot_counts[rank * self.n_ranks + self.place]
        next_batch(&self.merged.keys)
        need(&self.merged.keys, most)
        return self.numbers.merge(
            self.slot_keys, self.key_stride, self.slots, self.slot_stride, self.slot_counts,
            self.counts, self.n_ranks, self.place, &self.merged.keys,
            self.sums.fit(most * self.key_bytes), max(self.divisor(), 1.0), self.key_width,
        )

    cdef void lay_out(self, Py_ssize_t n) noexcept nogil:
        """Put the n keys and values of this rank's slice where all ranks read them."""
        cdef Py_ssize_t first = self.start // self.key_width
        memcpy(self.total_keys + first, self.merged.keys.list, n * sizeof(int64_t))
        memcpy(self.total + first * self.key_bytes, self.sums.at, n * self.key_bytes)
        self.total_counts[self.place] = n

    cdef int pushed_keys(self) except -1 nogil:
        """The second half."""
        if not self.use_keys(self.merge_keys()):
            return BAD_UPDATE
        if self.rank == 0:
            store(&self.kept, S_VERSION, self.request.step)
        self.answer.nbytes = 0
        return self.done()

    def rest(self, int64_t clock):
        """The rank takes no more steps in this epoch; `clock` are those up to its end."""

    def flush(self, int64_t epoch):
        """Apply what lazy updates have left behind, while nobody pushes; whether all is finite.

        Nothing is where ranks wait for each other: the last step of an epoch has done that.
        """
        return True

    cdef int use_keys(self, Py_ssize_t n) except -1 nogil:
        """Use the n keys and means of this rank's slice; whether all is finite."""
        return True


cdef class HostReducer(MappedChannel):
    """A rank's channel to the window of its host, in which ranks sum before one of them sends.

    The window is as long as the whole vector; the ranks in it are numbered from 0, which leads.
    Protocol of a step. Each rank fills its slot and takes part in an exchange (see above) whose
    sum is not divided. The leader then asks the shards, writes what comes of it into the store's
    PARAMS, notes and status into REDUCTIONS, and then ANSWERED; the others wait for that. In a
    broadcast ranks have nothing to sum: they arrive, which says that they have read what stood
    there before. By keys the leader has the sums in TOTAL_KEYS and TOTAL, where it writes the means
    that come back, if any do; each rank reads the parameters at its own keys by itself.
    Nobody arrives at step k + 1 who has not read the answer of step k, and only then is it written
    over. A leader that dies leaves the others waiting until the fit is stopped.
    """

    def __init__(self, window, int rank, ranges, until, double tick, Activity activity):
        MappedChannel.__init__(self, window, rank, -1, ranges, until, tick, activity)
        self.leads = rank == 0
        self.answered = self.keep(window.reductions)
        self.answer_stride = window.reductions.strides[0]
        if self.key_width:
            self.mean.n_parts = 1
            self.mean.keys[0], self.mean.values[0] = self.total_keys, self.total

    cdef double divisor(self) noexcept nogil:
        return 1

    cdef int sum_up(
        self, int64_t op, const char* given, int64_t rows, const double* notes, int64_t sequence
    ) except -1 nogil:
        """Sum what the host's ranks give: TOTAL, `rows` and the answer's notes.

        By keys, what `picks` says of it: the leader has the sums in `mean`.
        """
        cdef int i, status
        self.request.op = op if op == BROADCAST or op == PUSH_KEYS else MEAN
        self.request.sequence = sequence
        self.request.rows = rows
        for i in range(NOTES):
            self.request.notes[i] = notes[i]
        if load(&self.words, W_STOP) != 0:
            return STOPPED
        status = self.begin(given)
        if status != RAN:
            return status
        if op == BROADCAST:
            if self.leads:
                self.wait(R_ARRIVED, 0, sequence)
            return RAN
        if op == PUSH_KEYS:
            return self._sum_keys()
        return self.finish(NULL)

    cdef int _sum_keys(self) except -1 nogil:
        cdef Py_ssize_t each = self.key_bytes, n = 0, first, count
        cdef int rank
        self.lay_out(self.merge_keys())
        self.done()
        if self.leads:
            for rank in range(self.n_ranks):  # side by side: nobody else reads them any more
                first, count = min(self.n_keys, rank * self.slice_keys), self.total_counts[rank]
                memmove(self.total_keys + n, self.total_keys + first, count * sizeof(int64_t))
                memmove(self.total + n * each, self.total + first * each, count * each)
                n += count
            self.mean.counts[0] = n
        return RAN

    cdef void take_means(self, int number, ShardChannel channel) noexcept nogil:
        """Lay out the means that a shard has answered with behind those of the shards before."""
        cdef Py_ssize_t each = self.key_bytes, part, count
        cdef Py_ssize_t n = self.total_counts[0] if number else 0
        for part in range(channel.mean.n_parts):
            count = channel.mean.counts[part]
            memcpy(self.total_keys + n, channel.mean.keys[part], count * sizeof(int64_t))
            memcpy(self.total + n * each, channel.mean.values[part], count * each)
            channel._globalise(self.total_keys + n, count)
            n += count
        self.total_counts[0] = n

    cdef int publish(self, int status, const double* notes) noexcept nogil:
        """Let the others have the leader's answer."""
        cdef double* answer = <double*> (
            self.answered + (self.request.sequence % 2) * self.answer_stride
        )
        memcpy(answer, notes, NOTES * sizeof(double))
        answer[NOTES] = status
        store(&self.words, W_ANSWERED, self.request.sequence)
        return status

    cdef int await_answer(self, double* notes) except -1 nogil:
        """Wait for the leader's answer; its notes."""
        cdef double* answer = <double*> (
            self.answered + (self.request.sequence % 2) * self.answer_stride
        )
        self.wait(-1, W_ANSWERED, self.request.sequence)
        memcpy(notes, answer, NOTES * sizeof(double))
        # What has gone wrong is the leader's to say.
        return RAN if <int> answer[NOTES] == RAN else STOPPED


cdef class StreamChannel(ShardChannel):
    """A channel over a wire, at whose other side a `Service` has one in the shard's window.

    Parameters
    ----------
    dtype, size, n_ranks, ranges, key_width
        As of an `ShardChannel`.
    wire : Wire
    raised : callable
        Makes the exception of a pickle.
    shard : int
    activity : Activity
        Of which the row of that shard is sent there, four times a second.
    """

    def __init__(
        self, dtype, Py_ssize_t size, int n_ranks, ranges, Py_ssize_t key_width, Wire wire, raised,
        int shard, Activity activity,
    ):
        ShardChannel.__init__(self, dtype, size, n_ranks, ranges, key_width)
        self.far = True
        self.shard, self.activity = shard, activity
        self.wire = wire
        self.raised = raised
        if key_width:
            self.came_keys = Buffer()
            parts = np.zeros(3, np.int64)
            self.mean.keys = <const int64_t**> self.keep(parts)
            self.mean.values = <const char**> (self.mean.keys + 1)
            self.mean.counts = <int64_t*> (self.mean.values + 1)

    def call(self, bytes message):
        """Have a function called at the shard; its pickled answer."""
        cdef const void* parts[2]
        cdef Py_ssize_t sizes[2]
        if self.pending:  # an error has left it there
            raise self.wire.lost("an error has left it inside a step")
        self.pending = True
        self.request.op = CALL
        self.request.nbytes = len(message)
        parts[0], sizes[0] = &self.request, sizeof(Request)
        parts[1], sizes[1] = <const char*> message, len(message)
        with nogil:
            self.wire.send(parts, sizes, 2)
            self.receive(NULL)
        answer = self.wire.receive_bytes(self.answer.nbytes)
        self.pending = False
        return answer

    cdef int begin(self, const char* given) except -1 nogil:
        return self.send(given)

    cdef int finish(self, char* taken) except -1 nogil:
        return self.receive(taken)

    cdef int send(self, const char* given) except -1 nogil:
        cdef const void* parts[PARTS]
        cdef Py_ssize_t sizes[PARTS]
        cdef Py_ssize_t itemsize = self.numbers.itemsize, r
        cdef int64_t op = self.request.op
        cdef Request account
        cdef int n = 0
        if dps_nanoseconds() > self.accounted + ACCOUNT_EVERY:
            n = self._account(&account, parts, sizes)
        parts[n], sizes[n] = &self.request, sizeof(Request)
        n += 1
        self.request.nbytes = 0
        if op == PUSH or op == MEAN or (op == BROADCAST and given is not NULL):
            self.request.nbytes = self.size * itemsize
            for r in range(self.n_ranges):
                if n == PARTS:
                    self.wire.send(parts, sizes, n)
                    n = 0
                parts[n] = given + self.ranges[2 * r] * itemsize
                sizes[n] = (self.ranges[2 * r + 1] - self.ranges[2 * r]) * itemsize
                n += 1
        elif op == PULL_KEYS or op == PUSH_KEYS:
            if self.request.n_keys >= 0:
                parts[n], sizes[n] = self.picks.keys, self.picks.n * sizeof(int64_t)
                self.request.nbytes += sizes[n]
                n += 1
            if op == PUSH_KEYS:
                parts[n], sizes[n] = given, self.picks.n * self.key_bytes
                if self.picks.at is not NULL:
                    parts[n] = self.values.fit(sizes[n])
                    self.numbers.pick(
                        self.values.at, given, self.picks.at, self.picks.n, self.key_width
                    )
                self.request.nbytes += sizes[n]
                n += 1
        self.pending = True
        self.wire.send(parts, sizes, n)
        return RAN

    cdef int put(
        self, int place, const char* values, Py_ssize_t n, int64_t rows, int64_t sequence
    ) except -1 nogil:
        cdef const void* parts[2]
        cdef Py_ssize_t sizes[2]
        cdef Request request
        request.op, request.nbytes = RING, n * self.numbers.itemsize
        request.sequence, request.rows, request.n_keys = sequence, rows, place
        parts[0], sizes[0] = &request, sizeof(Request)
        parts[1], sizes[1] = values, request.nbytes
        return self._send_whole(parts, sizes)

    cdef int _send_whole(self, const void** parts, const Py_ssize_t* sizes) except -1 nogil:
        """Send a message without an answer; who looks around meanwhile puts nothing inside it."""
        cdef bint pending = self.pending
        self.pending = True
        self.wire.send(parts, sizes, 2)
        self.wire.flush()
        self.pending = pending
        return RAN

    cdef int _account(self, Request* request, const void** parts, Py_ssize_t* sizes) noexcept nogil:
        """Put what the rank has counted in front of a message; how many parts that takes."""
        self.accounted = dps_nanoseconds()
        request.op = ACCOUNT
        request.nbytes = WIDTH * sizeof(int64_t)
        parts[0], sizes[0] = request, sizeof(Request)
        parts[1], sizes[1] = self.activity._rows[self.shard], request.nbytes
        return 2

    cdef int say(self) except -1 nogil:
        """Send what the rank has counted, where it is time."""
        cdef const void* parts[2]
        cdef Py_ssize_t sizes[2]
        cdef Request request
        # Not inside a message. While an answer is awaited, who serves this rank says that it waits.
        if not self.pending and dps_nanoseconds() > self.accounted + ACCOUNT_EVERY:
            self._account(&request, parts, sizes)
            self._send_whole(parts, sizes)
        return 0

    def account(self):
        """Send what the rank has counted."""
        cdef const void* parts[2]
        cdef Py_ssize_t sizes[2]
        cdef Request request
        with nogil:
            self._account(&request, parts, sizes)
            self._send_whole(parts, sizes)

    cdef int receive(self, char* taken) except -1 nogil:
        cdef bint got = self.wire.receive(&self.answer, sizeof(Answer))
        if not got:
            with gil:
                raise self.wire.lost("the shard has closed the connection")
        if self.answer.status == RAISED:
            with gil:
                raise self.raised(self.wire.receive_bytes(self.answer.nbytes))
        if self.request.op == CALL:  # whose answer is still to be read
            return <int> self.answer.status
        if self.answer.status == RAN:
            self._payload(taken)
        self.pending = False
        return <int> self.answer.status

    cdef int _payload(self, char* taken) except -1 nogil:
        """Put what follows an answer to its place."""
        cdef Py_ssize_t itemsize = self.numbers.itemsize, r, nbytes
        cdef int64_t n = self.answer.n_keys
        if self.request.op == PULL_KEYS:
            nbytes = self.picks.n * self.key_bytes
            self._expect(nbytes)
            if self.picks.at is NULL:
                self.wire.receive(taken, nbytes)
            else:
                self.wire.receive(self.values.fit(nbytes), nbytes)
                self.numbers.scatter(
                    taken, self.values.at, self.picks.at, self.picks.n, self.key_width
                )
        elif self.request.op == PUSH_KEYS:
            if not 0 <= n <= self.n_keys:
                n = self.n_keys
            nbytes = n * self.key_bytes
            self._expect(nbytes + n * <Py_ssize_t> sizeof(int64_t))
            self.mean.keys[0] = <int64_t*> self.came_keys.fit(n * sizeof(int64_t))
            self.mean.values[0] = self.values.fit(nbytes)
            self.wire.receive(self.came_keys.at, n * sizeof(int64_t))
            self.wire.receive(self.values.at, nbytes)
            self.mean.n_parts = 1 if n else 0
            self.mean.counts[0] = n
        else:
            self._expect(self.size * itemsize)
            for r in range(self.n_ranges):
                self.wire.receive(
                    taken + self.ranges[2 * r] * itemsize,
                    (self.ranges[2 * r + 1] - self.ranges[2 * r]) * itemsize,
                )
        return 0

    cdef int _expect(self, Py_ssize_t nbytes) except -1 nogil:
        if self.answer.nbytes != nbytes:
            with gil:
                raise self.wire.lost(
                    f"an answer of {nbytes} bytes was expected, got {self.answer.nbytes}"
                )
        return 0
