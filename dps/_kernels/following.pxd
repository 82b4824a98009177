from cython cimport floating
from libc.stdint cimport int64_t

from dps._kernels.optimizers cimport MOMENTUM, UpdateSpec

cdef enum:
    CHUNK = 256  # coordinates that are processed together, in the first-level cache
    SERIES = 6  # terms of the series of the logarithm of a shrinkage

# Coordinates that follow updates without a gradient. Update `before` + i, i from 1, has
# rate[i - 1]; entry i of a table is over the first i of these.
cdef struct Lazy:
    UpdateSpec spec
    double l1
    double l2
    bint constant           # all rates are the same
    double age  # divisor of the rate of an update with a gradient
    double highest  # highest rate
    Py_ssize_t steps
    int64_t before  # updates before those of the tables
    const double* rates
    const double* sums  # sums of the rates
    const double* moments  # (SERIES, steps + 1) sums of their powers, from the first on
    const double* decays  # products of 1 + s * l2 with the step size s of SGD and momentum:
    const int64_t* scales   # decays * 2^scales
    Py_ssize_t n_runs
    const int64_t* runs  # (n_runs, 3) first, end, penalised


cdef inline bint is_lagging(const Lazy* lazy, bint penalised) noexcept nogil:
    """True if such coordinates change without a gradient."""
    return lazy.spec.kind == MOMENTUM or penalised and (lazy.l1 != 0 or lazy.l2 != 0)


cdef void follow(
    const Lazy* lazy, floating* p, floating* state, Py_ssize_t stride, const int64_t* since,
    Py_ssize_t n, int64_t now, bint penalised,
) noexcept nogil
