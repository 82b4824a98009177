from libc.stdint cimport int64_t

from dps._kernels.following cimport Lazy

# The vectors of a shard, of length `size`, with rows of state.
cdef struct Held:
    Py_ssize_t size
    char* params
    char* state
    Py_ssize_t width  # coordinates per key
    int64_t* since  # last update of a key's coordinates


cdef class LazyUpdate:
    cdef Lazy lazy
    cdef readonly bint single
    cdef tuple _arrays
    cdef tuple _tables


cdef void gather(
    const Lazy* lazy, bint single, const Held* held, const int64_t* keys, Py_ssize_t n, int64_t now,
    char* out,
) noexcept nogil
cdef bint apply(
    const Lazy* lazy, bint single, const Held* held, const int64_t* keys, Py_ssize_t n, int64_t now,
    const char* grad,
) noexcept nogil
cdef bint flush(
    const Lazy* lazy, bint single, const Held* held, Py_ssize_t start, Py_ssize_t stop, int64_t now
) noexcept nogil
