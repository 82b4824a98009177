from libc.stdint cimport int64_t

from dps._kernels.optimizers cimport UpdateSpec

# How coordinates follow updates that brought them no gradient. Update `before` + i, i from 1, has
# rate[i - 1]; entry i of a table is over the first i of these.
cdef struct Lazy:
    UpdateSpec spec
    double l1
    double l2
    bint constant           # all rates are the same
    double age              # what the rate of an update is divided by where it has a gradient
    double highest          # of the rates
    Py_ssize_t steps
    int64_t before          # updates before those of the tables
    const double* rates
    const double* sums      # of the rates
    const double* moments   # (SERIES, steps + 1): of their powers, from the first on
    const double* decays    # product of 1 + s * l2, s the step size of SGD and momentum:
    const int64_t* scales   # decays * 2^scales
    Py_ssize_t n_runs
    const int64_t* runs     # (n_runs, 3): first, last, penalised

# Where the vectors of a shard lie: of length `size`, rows of state too.
cdef struct Held:
    Py_ssize_t size
    char* params
    char* state
    Py_ssize_t width        # coordinates of a key
    int64_t* since          # the update that a key's coordinates are up to date with


cdef class LazyUpdate:
    cdef Lazy lazy
    cdef readonly bint single
    cdef tuple _arrays
    cdef tuple _tables
    cdef Held _held(self, params, state, since) except *
    cdef int _check(self, keys, Py_ssize_t size, int64_t now) except -1


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
