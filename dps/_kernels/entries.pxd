from cython cimport floating
from libc.stdint cimport int32_t, int64_t

from dps._kernels.losses cimport LossSpec
from dps._kernels.rows cimport Rows


cdef struct Machine:
    Py_ssize_t n_features
    Py_ssize_t n_rows       # that columns have, by their numbers
    Py_ssize_t n_held       # rows that are in the table: all of them, or some and one of zeros
    const int64_t* held     # (n_held,): which, ascending, and any number behind; NULL: all
    Py_ssize_t n_outputs
    Py_ssize_t n_factors
    Py_ssize_t width        # of a row: weights of the outputs, then factors
    Py_ssize_t apart        # elements of a row's sums: factors times the fields that are kept apart
    Py_ssize_t block        # rows that go through together
    Py_ssize_t laid         # dense rows that are laid side by side before
    Py_ssize_t n_numbers
    Py_ssize_t dense        # where what is not of the table begins in the parameters
    Py_ssize_t mix          # (n_outputs, n_factors) behind it, where there are several outputs
    Py_ssize_t first_layer  # weights of the first layer behind it
    double factor_gain
    double gain             # of all values
    bint normalised         # whether rows are of one length, the gain
    double layer_gain
    const int32_t* places   # (n_features,): of a number, or -1; NULL: there are none
    const int32_t* rows     # (n_features,): the first row of each column; NULL: its own number
    const int32_t* fields   # (n_rows,); NULL: all are summed together
    const int32_t* bins     # (n_numbers + 1,): where the knots of each number begin
    const int32_t* firsts   # (n_numbers,): the row of its first knot
    const char* knots       # (n_knots,)
    const char* steepness   # (n_knots,), one over what lies between a knot and the next
    const char* shift       # (n_outputs,) of raw outputs
    const char* scale
    LossSpec loss


cdef Py_ssize_t most_entries(
    const Machine* machine, const Rows* rows, const int64_t* order, Py_ssize_t at, Py_ssize_t n
) noexcept nogil
cdef Py_ssize_t take_entries(
    const Machine* machine, floating* x, const Rows* rows, const int64_t* order, Py_ssize_t at,
    Py_ssize_t n, Py_ssize_t ahead, floating* values, int* places, int* starts, Py_ssize_t stored,
) noexcept nogil
