"""From rows of a batch to the entries of a factorization machine: places in a table, and values.

A column is a row of the table. A number has a row for each of its knots and two entries, of the
knots around it, which share a one. With knots 0, 10 and 30 in rows 5, 6 and 7 a number of 25 is 1/4
at row 6 and 3/4 at row 7, one of 40 is 1 at row 7.
"""
from cython cimport floating
from libc.math cimport sqrt
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from dps._kernels.checks cimport index_t
from dps._kernels.gather cimport fill_rows
from dps._kernels.prefetch cimport dps_prefetch
from dps._kernels.rows cimport COLUMNS, CSR, CSR_WIDE, DENSE, Rows

cdef enum:
    SOON = 8  # rows that are prefetched ahead of the current one


cdef inline Py_ssize_t _number(
    const Machine* machine, Py_ssize_t j, floating value, floating* values, int* places
) noexcept nogil:
    """Add the entries of a number, for the knots around it."""
    cdef Py_ssize_t first = machine.bins[j], last = machine.bins[j + 1] - 1, e, at = first
    cdef const floating* knots = <const floating*> machine.knots
    cdef floating part, gain = <floating> machine.gain
    for e in range(first + 1, last):
        at += value >= knots[e]
    part = (value - knots[at]) * (<const floating*> machine.steepness)[at]
    part = part if not part > 1 else 1
    part = part if not part < 0 else 0
    places[0] = machine.firsts[j] + <int> (at - first)
    if first == last or part == 0:
        values[0] = gain
        return 1
    if part == 1:
        places[0] += 1
        values[0] = gain
        return 1
    places[1] = places[0] + 1
    values[0] = gain * (1 - part)
    values[1] = gain * part
    return 2


cdef Py_ssize_t _scaled(const Machine* machine, floating* values, Py_ssize_t n) noexcept nogil:
    """Scale the n entries of a row to the common length, if there is one; return n."""
    cdef Py_ssize_t p
    cdef double total = 0
    cdef floating factor
    if not machine.normalised:
        return n
    for p in range(n):
        total += <double> values[p] * values[p]
    if total > 0:
        factor = <floating> (machine.gain / sqrt(total))
        for p in range(n):
            values[p] *= factor
    return n


cdef Py_ssize_t _of_dense(
    const Machine* machine, const floating* x, floating* values, int* places
) noexcept nogil:
    """Add the entries of a dense row; return their number."""
    cdef Py_ssize_t j, n = 0
    for j in range(machine.n_features):
        if machine.places is not NULL and machine.places[j] >= 0:
            n += _number(machine, machine.places[j], x[j], values + n, places + n)
        elif x[j] != 0:
            values[n] = <floating> machine.gain * x[j]
            places[n] = machine.rows[j] if machine.rows is not NULL else <int> j
            n += 1
    return _scaled(machine, values, n)


cdef Py_ssize_t _of_sparse(
    const Machine* machine, const floating* given, const index_t* indices, Py_ssize_t stored,
    floating* x, floating* values, int* places,
) noexcept nogil:
    """Add the entries of a sparse row, with its numbers in ``x``; return their number."""
    cdef Py_ssize_t p, j, column, n = 0, m = machine.n_numbers
    cdef floating gain = <floating> machine.gain
    if machine.rows is NULL:
        for p in range(stored):
            values[p] = gain * given[p]
            places[p] = <int> indices[p]
        return _scaled(machine, values, stored)
    memset(x, 0, m * sizeof(floating))
    for p in range(stored):
        column = indices[p]
        if machine.places[column] >= 0:
            x[machine.places[column]] += given[p]
        else:
            values[n] = gain * given[p]
            places[n] = machine.rows[column]
            n += 1
    for j in range(m):
        n += _number(machine, j, x[j], values + n, places + n)
    return _scaled(machine, values, n)


cdef void _ask_for(
    const floating* values, const index_t* indices, const index_t* indptr, const int64_t* order,
    Py_ssize_t i, Py_ssize_t reach,
) noexcept nogil:
    """Prefetch rows of a shuffled order."""
    cdef Py_ssize_t p, row
    if i + 2 * SOON < reach:
        dps_prefetch(indptr + order[i + 2 * SOON])
    if i + SOON < reach:
        row = order[i + SOON]
        for p in range(indptr[row], indptr[row + 1], 8):
            dps_prefetch(values + p)
            dps_prefetch(indices + p)


cdef Py_ssize_t _take_sparse(
    const Machine* machine, floating* x, const floating* given, const index_t* indices,
    const index_t* indptr, const int64_t* order, Py_ssize_t at, Py_ssize_t n, Py_ssize_t ahead,
    floating* values, int* places, int* starts, Py_ssize_t stored,
) noexcept nogil:
    """Append the entries of n CSR rows; return the new number of entries."""
    cdef Py_ssize_t i, row
    for i in range(at, at + n):
        row = order[i] if order is not NULL else i
        if order is not NULL:
            _ask_for(given, indices, indptr, order, i, at + n + ahead)
        starts[i - at] = <int> stored
        stored += _of_sparse(
            machine, given + indptr[row], indices + indptr[row],
            indptr[row + 1] - indptr[row], x, values + stored, places + stored,
        )
    starts[n] = <int> stored
    return stored


cdef Py_ssize_t _take_dense(
    const Machine* machine, floating* x, const Rows* rows, const int64_t* order, Py_ssize_t at,
    Py_ssize_t n, floating* values, int* places, int* starts, Py_ssize_t stored,
) noexcept nogil:
    """Append the entries of n dense rows; return the new number of entries."""
    cdef Py_ssize_t i, j, row, m, done = 0, f = machine.n_features
    cdef Py_ssize_t apart = rows.stride
    if rows.kind == DENSE:
        apart *= sizeof(floating)
    while done < n:
        m = min(n - done, machine.laid)
        if rows.kind == COLUMNS:
            fill_rows(rows.columns, f, order, at + done, m, x)
        else:
            for i in range(m):
                row = order[at + done + i] if order is not NULL else at + done + i
                memcpy(x + i * f, rows.values + row * apart, f * sizeof(floating))
        for j in range(m):
            starts[done + j] = <int> stored
            stored += _of_dense(machine, x + j * f, values + stored, places + stored)
        done += m
    starts[n] = <int> stored
    return stored


cdef Py_ssize_t most_entries(
    const Machine* machine, const Rows* rows, const int64_t* order, Py_ssize_t at, Py_ssize_t n
) noexcept nogil:
    """Return the largest number of entries of n rows of a batch."""
    cdef Py_ssize_t i, row, total = n * 2 * machine.n_numbers
    if rows.kind == CSR or rows.kind == CSR_WIDE:
        for i in range(at, at + n):
            row = order[i] if order is not NULL else i
            if rows.kind == CSR:
                total += (<const int*> rows.indptr)[row + 1] - (<const int*> rows.indptr)[row]
            else:
                total += (
                    (<const int64_t*> rows.indptr)[row + 1] - (<const int64_t*> rows.indptr)[row]
                )
        return total
    return total + n * machine.n_features


cdef Py_ssize_t take_entries(
    const Machine* machine, floating* x, const Rows* rows, const int64_t* order, Py_ssize_t at,
    Py_ssize_t n, Py_ssize_t ahead, floating* values, int* places, int* starts, Py_ssize_t stored,
) noexcept nogil:
    """Append the entries of n rows; return the new number of entries."""
    if rows.kind == CSR:
        return _take_sparse(
            machine, x, <const floating*> rows.values, <const int*> rows.indices,
            <const int*> rows.indptr, order, at, n, ahead, values, places, starts, stored,
        )
    if rows.kind == CSR_WIDE:
        return _take_sparse(
            machine, x, <const floating*> rows.values, <const int64_t*> rows.indices,
            <const int64_t*> rows.indptr, order, at, n, ahead, values, places, starts, stored,
        )
    return _take_dense(machine, x, rows, order, at, n, values, places, starts, stored)
