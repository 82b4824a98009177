"""Rows of a table of embeddings, made when they are first touched.

Owns where the row of an id lies, what a new one holds, how often an id must be seen before it has
one, and how rows that no batch touches are given up. A row's place tells nothing: it is found by
its id (collisionless), and what a new one holds follows from seed and id alone, so that the table
does not depend on who made it, or on how many shards and ranks there are. The rows are a hash table
themselves, with linear probing inside of a region.

Protocol. An entry of ``ids`` goes from FREE or LEFT to MAKING - id, by the thread that wins it; the
row is written; then the entry becomes id + 1. Who wants that id waits for it; others pass by. No
entry becomes FREE or LEFT while others look (`expire` wants quiet). So two who make the same id at
once probe the same entries, and one of them wins: an id never has two rows. A crash between the two
steps leaves MAKING: the id has no row until the table is laid out anew, and gradients for it are
dropped after a wait of a second.
"""
from cython cimport floating
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.string cimport memset

import numpy as np

from dps._kernels.checks cimport same_length, vector_of

cdef extern from "table.h" nogil:
    double dps_drawn(uint64_t seed, int64_t id, int64_t c)
    double dps_normal(uint64_t seed, int64_t id, int64_t c)
    int64_t dps_get(const int64_t* at)
    void dps_put(int64_t* at, int64_t value)
    int dps_swap(int64_t* at, int64_t before, int64_t value)
    int32_t dps_count(int32_t* at)
    void dps_wait_a_little(int tries)

cdef enum:
    MAX_TRIES = 10000  # number of looks at an entry whose row is being created
    FEW = 64  # rows below which a last region would often be full


cdef inline int64_t _read(const int64_t* at, int64_t id) noexcept nogil:
    """Return the content of an entry, once no writer creates the row of this id there."""
    cdef int64_t found = dps_get(at)
    cdef int tries = 0
    while found == MAKING - id and tries < MAX_TRIES:
        dps_wait_a_little(tries)
        found = dps_get(at)
        tries += 1
    return found


cdef int64_t find(const Table* table, int64_t id) noexcept nogil:
    """Return the row of an id, or NOWHERE."""
    cdef int64_t row = dps_home(id, table.n_homes), found
    cdef int64_t first = row - row % table.region, last = min(first + table.region, table.n_rows)
    cdef int64_t left = last - first
    while left > 0:
        found = _read(table.ids + row, id)
        if found == id + 1:
            return row
        if found == FREE or found == MAKING - id:
            break
        row += 1
        left -= 1
        if row == last:
            row = first
    return NOWHERE


cdef void _draw(const Table* table, int64_t id, floating* out) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(table.zeros):
        out[c] = 0
    if table.normal:
        for c in range(table.zeros, table.width):
            out[c] = <floating> (table.scale * dps_normal(table.seed, id, c))
    else:
        for c in range(table.zeros, table.width):
            out[c] = <floating> (table.scale * dps_drawn(table.seed, id, c))


cdef void draw(const Table* table, int64_t id, void* out) noexcept nogil:
    """Write the initial values of an id's row; zeros if it has not been seen often enough."""
    if table.min_count > 1:
        memset(out, 0, table.width * (4 if table.single else 8))
    elif table.single:
        _draw(table, id, <float*> out)
    else:
        _draw(table, id, <double*> out)


cdef void _write(
    const Table* table, int64_t id, int64_t row, floating* params, floating* state
) noexcept nogil:
    cdef Py_ssize_t r, c
    _draw(table, id, params + row * table.width)
    for r in range(table.state_rows):
        for c in range(table.width):
            state[r * table.size + row * table.width + c] = <floating> table.start[r]


cdef int64_t make(const Table* table, int64_t id, int64_t now) noexcept nogil:
    """Return the row of an id for update ``now``, creating it if needed; or FULL, or NOT_YET."""
    cdef int64_t home = dps_home(id, table.n_homes), row, found, spare, before, left
    cdef int64_t first = home - home % table.region
    cdef int64_t last = min(first + table.region, table.n_rows)
    while True:
        row, left, spare = home, last - first, NOWHERE
        while left > 0:
            found = _read(table.ids + row, id)
            if found == MAKING - id:
                return NOT_YET
            if found == id + 1:
                if table.seen is not NULL:
                    table.seen[row] = now
                return row
            if found == LEFT and spare == NOWHERE:
                spare = row
            if found == FREE:
                if spare == NOWHERE:
                    spare = row
                break
            row += 1
            left -= 1
            if row == last:
                row = first
        if table.counts is not NULL and table.counts[home] + 1 < table.min_count:
            dps_count(table.counts + home)
            return NOT_YET
        if spare == NOWHERE:
            return FULL
        before = dps_get(table.ids + spare)
        if before != FREE and before != LEFT:
            continue  # another thread has it now, perhaps for this id
        if not dps_swap(table.ids + spare, before, MAKING - id):
            continue
        if table.single:
            _write(table, id, spare, <float*> table.params, <float*> table.state)
        else:
            _write(table, id, spare, <double*> table.params, <double*> table.state)
        if table.seen is not NULL:
            table.seen[spare] = now
        table.since[spare] = now - 1
        dps_put(table.ids + spare, id + 1)
        return spare


cdef void expire(
    const Table* table, Py_ssize_t first, Py_ssize_t last, int64_t before
) noexcept nogil:
    """Remove rows first .. last whose last update was before `before`, while nothing else runs.

    These are whole regions. Counts of ids without a row are reset.
    """
    cdef int64_t row, end
    if table.counts is not NULL:
        memset(table.counts + first, 0, (last - first) * sizeof(int32_t))
    if table.seen is NULL:
        return
    for row in range(first, last):
        if table.ids[row] > 0 and table.seen[row] < before:
            dps_put(table.ids + row, LEFT)
    # A free row ends a probe, so rows before it need no mark.
    for row in range(last - 1, first - 1, -1):
        end = row + 1
        if end % table.region == 0 or end == table.n_rows:
            end = row - row % table.region
        if table.ids[row] == LEFT and table.ids[end] == FREE:
            dps_put(table.ids + row, FREE)


def owners(const int64_t[::1] ids, Py_ssize_t n_rows):
    """Return one row of all shards for each id: the shard that has it has the id."""
    cdef int64_t[::1] found = np.empty(ids.shape[0], np.int64)
    cdef Py_ssize_t i
    for i in range(ids.shape[0]):
        found[i] = dps_owner(ids[i], n_rows)
    return found.base


cdef char* _address(array) except? NULL:
    return <char*> <uintptr_t> array.ctypes.data


cdef class TableRows:
    """The rows of a shard's part of a table, in memory that others may share.

    params: (size,) array; its first elements are the table's.
    state: (state_rows, size) array.
    ids: (n_rows,) int64 array, one more than the id of a row; zeros at first.
    counts: (n_rows,) or (0,) int32 array, where an id needs to be seen more than once.
    seen: (n_rows,) or (0,) int64 array, where rows expire.
    since: (>= n_rows,) int64 array, the update that each row is up to date with, see `LazyUpdate`.
    width: elements of a row.
    region: rows that one rank is in charge of.
    zeros: elements of a new row that are zero; the next ones are drawn, uniform up to `scale`.
    start: state of a new row, a number a row of state.
    normal: whether elements are drawn from a normal distribution of that scale instead.
    """

    def __init__(
        self, params, state, ids, counts, seen, since, *, Py_ssize_t width, Py_ssize_t region,
        Py_ssize_t zeros, double scale, uint64_t seed, int32_t min_count, start,
        bint normal=False,
    ):
        cdef Table* table = &self.table
        dtype = params.dtype.name
        starts = np.array(start, np.float64)
        vector_of("state", state, dtype, params.size * len(starts))
        vector_of("ids", ids, "int64", ids.size)
        if since.size < ids.size:
            raise ValueError(f"{ids.size} rows have {since.size} updates")
        vector_of("since", since, "int64", since.size)
        if ids.size * width > params.size or region < 1:
            raise ValueError(f"{ids.size} rows of {width} do not fit into {params.size} elements")
        for name, array, kind in (("counts", counts, "int32"), ("seen", seen, "int64")):
            if array.size:
                vector_of(name, array, kind, ids.size)
        same_length("zeros", min(max(zeros, 0), width), zeros)
        self._arrays = (params, state, ids, counts, seen, since, starts)
        table.n_rows, table.region, rest = ids.size, region, ids.size % region
        table.n_homes = ids.size - (rest if rest < min(FEW, region) and rest < ids.size else 0)
        table.ids = <int64_t*> _address(ids)
        table.counts = <int32_t*> _address(counts) if counts.size else NULL
        table.seen = <int64_t*> _address(seen) if seen.size else NULL
        table.since = <int64_t*> _address(since)
        table.min_count = min_count
        table.width, table.zeros, table.scale, table.seed = width, zeros, scale, seed
        table.normal = normal
        table.state_rows, table.start = len(starts), <const double*> _address(starts)
        table.single = dtype == "float32"
        table.size = params.size
        table.params, table.state = _address(params), _address(state)

    def find(self, ids):
        """Return the row of each id, -1 without a row."""
        cdef int64_t[::1] rows = np.empty(len(ids), np.int64)
        cdef const int64_t[::1] wanted = ids
        cdef Py_ssize_t i
        for i in range(wanted.shape[0]):
            rows[i] = find(&self.table, wanted[i])
        return rows.base

    def make(self, ids, int64_t now=0, *, bint admit=False):
        """Return the row of each id for update `now`, creating rows; -2: no room, -3: not yet.

        With `admit` rows are created however seldom ids have been seen.
        """
        cdef int64_t[::1] rows = np.empty(len(ids), np.int64)
        cdef const int64_t[::1] wanted = ids
        cdef Table table = self.table
        cdef Py_ssize_t i
        if admit:
            table.counts = NULL
        with nogil:
            for i in range(wanted.shape[0]):
                rows[i] = make(&table, wanted[i], now)
        return rows.base

    def expire(self, Py_ssize_t first, Py_ssize_t last, int64_t before):
        """Remove the rows of some regions whose last update was before `before`."""
        if not 0 <= first <= last <= self.table.n_rows or first % self.table.region:
            raise ValueError(f"[{first}, {last}) are no regions of {self.table.n_rows} rows")
        expire(&self.table, first, last, before)
