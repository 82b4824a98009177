"""Vectors by keys, and rows of a table, in a window that a rank has mapped.

A slot then has keys and their values, cut by the slices of all ranks: each rank merges what falls
into its own, as it sums its slice of whole vectors. What a batch does not touch follows lazily
(``_kernels/lazy.pyx``).
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy

import numpy as np

from dps._kernels.buffer cimport Buffer
from dps._kernels.keys cimport KeyList, need, next_batch
from dps._kernels.lazy cimport apply, flush, gather
from dps._kernels.table cimport NOT_YET, NOWHERE, TableRows, draw, expire, find, make
from dps._runtime.shared.activity cimport Activity
from dps._runtime.wire.message cimport BAD_GRADIENT, RAN
from dps._runtime.channel.whole cimport WholeChannel

from dps.errors import TableFullError


cdef class MappedChannel(WholeChannel):
    """A channel in the memory of the shard's window; parameters as of `WholeChannel`."""

    def __init__(
        self, window, int rank, int shard, first, slow_wait, double tick, Activity activity
    ):
        WholeChannel.__init__(self, window, rank, shard, first, slow_wait, tick, activity)
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

    cdef const char* _own(self) noexcept nogil:
        return NULL if self.by_keys() else WholeChannel._own(self)

    cdef Py_ssize_t given_size(self) noexcept nogil:
        return self.picks.n * self.key_width if self.by_keys() else self.size

    cdef int begin_epoch(self) except -1 nogil:
        """Have the learning rates of the request's epoch."""
        if self.request.epoch != self.epoch and self.lazy is not None:
            with gil:
                self.lazy.begin(*self.rates_of_epoch())
        self.epoch = self.request.epoch
        return 0

    cdef tuple rates_of_epoch(self):
        """See `LazyUpdate.begin`."""
        return self.rates.of_epoch(self.request.epoch)

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
                            "id near its place: raise max_embeddings to 1.5 times the rows that "
                            "there will be, or use min_count or expire_after"
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

    cdef int fill(self, int n_cuts) except -1 nogil:
        cdef const char* values
        if not self.by_keys():
            return WholeChannel.fill(self, n_cuts)
        values = self.values_of_picks()
        if self.picks.n > self.key_stride:
            with gil:
                raise TableFullError(
                    f"a batch touches {self.picks.n} rows of a shard's part of a table, which has "
                    f"room for {self.table.n_rows}: raise max_embeddings, or make batches smaller"
                )
        self.reserve(False, self.picks.n * self.key_bytes)
        self.count(self.picks.n * (self.key_bytes + 8))
        return RAN if self.numbers.deliver(
            self.picks.keys, self.picks.n, values, self.slice_keys, n_cuts,
            self.slot_keys + self.rank * self.key_stride,
            self.own_slot(),
            self.slot_counts + self.rank * self.n_ranks, self.key_width, self.table.n_homes,
        ) else BAD_GRADIENT

    cdef int pull(self, char* taken) except -1 nogil:
        """Nobody writes what is read here before this rank's next push."""
        if not self.by_keys():
            return WholeChannel.pull(self, taken)
        self.begin_epoch()
        return self.gather_keys(self.request.step, taken)

    cdef bint reduce(self, const int64_t* rows, int n_slots) except -1 nogil:
        if not self.by_keys():
            return WholeChannel.reduce(self, rows, n_slots)
        self.begin_epoch()
        return self.use_keys(self.merge_keys(rows, n_slots))

    cdef Py_ssize_t merge_keys(self, const int64_t* rows, int n_slots) except -1 nogil:
        """Sum what slots with rows have in this rank's slice; how many keys there are."""
        cdef Py_ssize_t most = 0
        cdef int slot
        for slot in range(n_slots):
            if rows[slot]:
                most += self.slot_counts[slot * self.n_ranks + self.slice.place]
        next_batch(&self.merged.keys)
        need(&self.merged.keys, most)
        return self.numbers.merge(
            self.slot_keys, self.key_stride, self.slots.at, self.slots.stride, self.slot_counts,
            rows, n_slots, self.n_ranks, self.slice.place, &self.merged.keys,
            self.sums.fit(most * self.key_bytes), max(self.divisor(), 1.0), self.key_width,
        )

    cdef bint apply_keys(
        self, int64_t* keys, char* mean, Py_ssize_t n, int64_t step
    ) except -1 nogil:
        """Apply a mean gradient at n keys, which may be moved, as update ``step``; is it finite?"""
        n = self.make_rows(keys, mean, n, step)
        return apply(&self.lazy.lazy, self.numbers.single, &self.held, keys, n, step, mean)

    cdef void lay_out(self, Py_ssize_t n) noexcept nogil:
        """Put the n keys and values of this rank's slice where all ranks read them."""
        cdef Py_ssize_t first = self.slice.start // self.key_width
        memcpy(self.total_keys + first, self.merged.keys.list, n * sizeof(int64_t))
        memcpy(self.total + first * self.key_bytes, self.sums.at, n * self.key_bytes)
        self.total_counts[self.slice.place] = n

    cdef int give(self, const char* part, char* taken) noexcept nogil:
        if self.by_keys():  # they are asked for with the next batch's keys
            return self.answer_with(NULL, 0)
        return WholeChannel.give(self, part, taken)

    def finish_steps(self, int64_t clock):
        """The rank takes no more steps in this epoch; `clock` are those up to its end."""

    def flush(self, int64_t epoch):
        """Apply what lazy updates have left behind, while nobody pushes; whether all is finite.

        In synchronous modes nothing is left: the last step of an epoch has applied it.
        """
        return True

    cdef int use_keys(self, Py_ssize_t n) except -1 nogil:
        """Use the n keys and means of this rank's slice; whether all is finite."""
        return True
