"""Parameters that steps read and update by keys: lazy updates, and rows of a table.

A key is brought up to date when it is read or updated (``_kernels/lazy.pyx``), and all keys at the
end of an epoch. An id without a row in the table reads as the row that it would have, and gets it
with its first gradient: if ranks wait for each other, from the rank of its slice, else from the
first rank that brings one.
"""
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy

from dps._kernels.buffer cimport Buffer
from dps._kernels cimport lazy
from dps._kernels.table cimport NOT_YET, NOWHERE, TableRows, draw, expire, find, make

from dps.errors import TableFullError


cdef class KeyedParams:
    """Parameters and optimizer state by keys.

    update: an :class:`~dps.optimizers.update.Update` with rates.
    params: (n,) array.
    state: (state_rows, n) array.
    since: (n / width,) int64 array, the update that each key is up to date with.
    table: the rows of a table, which are the first of the parameters; None: there is none.
    expire_after: epochs that a row of it stays without a gradient; 0: for ever.
    """

    def __init__(self, update, params, state, since, TableRows table=None, expire_after=0):
        self._refs = params, state, since, table
        self.update, self.rates, self.epoch = update.lazily(params.dtype.name), update.rates, -1
        self.held.size, self.held.width = len(params), update.rates.width
        self.held.params = <char*> <uintptr_t> params.ctypes.data
        self.held.state = <char*> <uintptr_t> state.ctypes.data
        self.held.since = <int64_t*> <uintptr_t> since.ctypes.data
        self.row_bytes = self.held.width * params.itemsize
        self.found = Buffer()
        if table is not None:
            self.table = table.table
            self.lasting = expire_after * update.rates.updates

    def begin_epoch(self, int64_t epoch, rates, int64_t before):
        """Set the learning rates of an epoch's updates, and the number of earlier updates."""
        self.update.begin(rates, before)
        self.epoch = epoch

    cdef Py_ssize_t _find(self, const int64_t* keys, Py_ssize_t n) except -1 nogil:
        """Find the places of keys, in `found`, followed by those of keys without a row."""
        cdef int64_t* rows = <int64_t*> self.found.fit(2 * n * sizeof(int64_t))
        cdef Py_ssize_t i, new = 0
        for i in range(n):
            rows[i] = keys[i]
            if rows[i] < 0:
                rows[i] = find(&self.table, -1 - rows[i])
                if rows[i] == NOWHERE:
                    rows[i] = 0
                    rows[n + new] = i
                    new += 1
        return new

    cdef int gather(
        self, const int64_t* keys, Py_ssize_t n, int64_t now, char* out
    ) except -1 nogil:
        """Read the parameters at n keys after bringing them up to date."""
        cdef const int64_t* rows = keys
        cdef Py_ssize_t i, at, new = 0
        if self.table.n_rows:
            new = self._find(keys, n)
            rows = <int64_t*> self.found.at
        lazy.gather(&self.update.lazy, self.update.single, &self.held, rows, n, now, out)
        for i in range(new):
            at = rows[n + i]
            draw(&self.table, -1 - keys[at], out + at * self.row_bytes)
        return 0

    cdef Py_ssize_t make_rows(
        self, int64_t* keys, char* values, Py_ssize_t n, int64_t now
    ) except -1 nogil:
        """Replace ids by rows, and leave out ids that get none; return the number of rows."""
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
                memcpy(values + left * self.row_bytes, values + i * self.row_bytes, self.row_bytes)
            left += 1
        return left

    cdef bint apply(
        self, const int64_t* keys, const char* mean, Py_ssize_t n, int64_t now
    ) noexcept nogil:
        """Apply a mean gradient at n keys, not ids, as update ``now``; True if all is finite."""
        return lazy.apply(&self.update.lazy, self.update.single, &self.held, keys, n, now, mean)

    cdef bint make_and_apply(
        self, int64_t* keys, char* mean, Py_ssize_t n, int64_t now
    ) except -1 nogil:
        """Apply a mean gradient at n keys that may be ids; keys and mean may be moved."""
        return self.apply(keys, mean, self.make_rows(keys, mean, n, now), now)

    cdef bint flush(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil:
        """Bring elements start .. stop up to date, except unused rows of a table."""
        cdef Py_ssize_t width = self.held.width
        cdef Py_ssize_t behind = min(stop // width, self.table.n_rows), last = start // width, first
        cdef bint finite = True
        while last < behind:
            first = last
            while first < behind and self.table.ids[first] <= 0:
                first += 1
            last = first
            while last < behind and self.table.ids[last] > 0:
                last += 1
            finite &= self._flush(first * width, last * width, now)
        return self._flush(max(start, self.table.n_rows * width), stop, now) and finite

    cdef bint _flush(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil:
        if start >= stop:
            return True
        return lazy.flush(&self.update.lazy, self.update.single, &self.held, start, stop, now)

    cdef bint is_last(self, int64_t now) noexcept nogil:
        """True for the last update of an epoch."""
        return now == self.update.lazy.before + self.update.lazy.steps

    cdef void expire_rows(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil:
        """Remove the expired rows among elements start .. stop, which are whole regions."""
        cdef Py_ssize_t first = start // self.held.width
        cdef Py_ssize_t last = min(stop // self.held.width, self.table.n_rows)
        if first < last:
            expire(&self.table, first, last, now - self.lasting + 1)
