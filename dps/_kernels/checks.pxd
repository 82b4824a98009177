# What the `def` wrappers of all kernels check once a call, and how loops see what is not finite.
# Values inside index arrays come from trusted code: they are looked at in a DPS_DEBUG build only,
# where raw pointers have no other guard.
from cython cimport floating
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #ifndef DPS_DEBUG
    #define DPS_DEBUG 0
    #endif
    """
    const bint DPS_DEBUG

ctypedef fused index_t:
    int
    int64_t


cdef inline int same_length(str name, Py_ssize_t actual, Py_ssize_t expected) except -1:
    if actual != expected:
        raise ValueError(f"{name} has length {actual}, expected {expected}")
    return 0


cdef inline int contiguous_rows(
    str name, Py_ssize_t width, Py_ssize_t stride, Py_ssize_t itemsize
) except -1:
    # A typed memoryview says this of all dimensions or of none: rows may lie apart from each other.
    if width > 1 and stride != itemsize:
        raise ValueError(f"rows of {name} must be contiguous, got a stride of {stride} bytes")
    return 0


cdef inline int indices_below(
    str name, const index_t* values, Py_ssize_t n, Py_ssize_t limit
) except -1:
    cdef Py_ssize_t i
    for i in range(n):
        if values[i] < 0 or values[i] >= limit:
            raise IndexError(f"{name}[{i}] is {values[i]}, outside [0, {limit})")
    return 0


# The bits of x - x, or-ed over elements: zero while all were finite, since x - x is then a positive
# zero, and else NaN. An integer `or` of the elements' width vectorises; a comparison of doubles
# does not on plain x86-64, and a short-circuit never does.
ctypedef struct NotFinite:
    int32_t floats
    int64_t doubles


cdef inline void note(NotFinite* seen, floating x) noexcept nogil:
    cdef floating zero = x - x
    cdef int32_t narrow
    cdef int64_t wide
    if floating is float:
        memcpy(&narrow, &zero, sizeof(floating))
        seen.floats |= narrow
    else:
        memcpy(&wide, &zero, sizeof(floating))
        seen.doubles |= wide


cdef inline bint none_seen(NotFinite seen) noexcept nogil:
    return seen.floats == 0 and seen.doubles == 0
