"""The columns that occur in CSR rows, renumbered.

It makes two passes over the indices.
"""
import numpy as np

from dps._kernels.checks cimport index_t


def renumber(const index_t[::1] indices, Py_ssize_t total):
    """The columns below `total` that occur, ascending, and the indices among these.

    `indices` are contiguous int32 or int64; the result is of the same dtype.

    Raises IndexError: one is outside [0, total).
    """
    cdef Py_ssize_t n = indices.shape[0], p
    cdef unsigned char[::1] occurs = np.zeros(total, np.uint8)
    cdef size_t column, width = <size_t> total
    cdef bint inside = True
    dtype = np.int32 if index_t is int else np.int64
    with nogil:
        for p in range(n):
            column = <size_t> indices[p]
            if column >= width:     # or negative
                inside = False
                break
            occurs[column] = 1
    if not inside:
        raise IndexError(f"stored value {p} has column {indices[p]}, outside [0, {total})")
    numbers = np.flatnonzero(occurs)
    cdef index_t[::1] places = np.cumsum(occurs, dtype=dtype)
    cdef index_t[::1] among = np.empty(n, dtype)
    with nogil:
        for p in range(n):
            among[p] = places[<size_t> indices[p]] - 1
    return numbers, among.base
