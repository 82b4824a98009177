# Checks in the kernels' `def` wrappers, once per call, and the loops' test for finite values.
# Values in index arrays come from trusted code: they are checked only in a DPS_DEBUG build, where
# raw pointers have no other guard.
from cython cimport floating
from libc.stdint cimport int32_t, int64_t, uintptr_t

cdef extern from "finite.h" nogil:
    int32_t dps_not_finite_float(float x) noexcept
    int64_t dps_not_finite_double(double x) noexcept

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


cdef inline char* vector_of(str name, array, str dtype, Py_ssize_t size) except? NULL:
    # Elements of an array that must be a whole vector.
    if array.dtype != dtype or not (array.flags.c_contiguous and array.flags.aligned):
        raise ValueError(f"{name} must be contiguous, aligned {dtype}, got {array.dtype}")
    same_length(name, array.size, size)
    return <char*> <uintptr_t> array.ctypes.data


cdef inline int contiguous_rows(
    str name, Py_ssize_t width, Py_ssize_t stride, Py_ssize_t itemsize
) except -1:
    # A typed memoryview can require contiguity of all dimensions or of none; rows may be apart.
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


# Zero while all elements were finite, see finite.h.
ctypedef struct NotFinite:
    int32_t floats
    int64_t doubles


cdef inline void note(NotFinite* seen, floating x) noexcept nogil:
    if floating is float:
        seen.floats |= dps_not_finite_float(x)
    else:
        seen.doubles |= dps_not_finite_double(x)


cdef inline bint none_seen(NotFinite seen) noexcept nogil:
    return seen.floats == 0 and seen.doubles == 0
