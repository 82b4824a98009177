from cython cimport floating
from libc.stdint cimport int32_t, int64_t

from dps._kernels.losses cimport LossSpec
from dps._kernels.rows cimport Rows


cdef struct Machine:
    Py_ssize_t n_features
    Py_ssize_t n_rows  # rows of the table, by the numbers of the columns
    Py_ssize_t n_held  # rows in the table: all of them, or some and one of zeros
    const int64_t* held  # (n_held,) ids of these, ascending, with a sentinel after them; NULL: all
    Py_ssize_t n_outputs
    Py_ssize_t n_factors
    Py_ssize_t width  # elements of a row: weights of the outputs, then factors
    Py_ssize_t apart  # elements of a row's sums: factors times the fields that are kept apart
    Py_ssize_t block  # rows that are processed together
    Py_ssize_t laid  # dense rows that are copied side by side before
    Py_ssize_t n_numbers
    Py_ssize_t dense  # where other parameters than the table begin
    Py_ssize_t mix  # (n_outputs, n_factors) after it, for several outputs
    Py_ssize_t first_layer  # weights of the first layer after that
    double factor_gain
    double gain  # factor of all values
    bint normalised  # whether all rows are scaled to a length equal to the gain
    double layer_gain
    const int32_t* places  # (n_features,) number of a column, or -1; NULL: no numbers
    const int32_t* rows  # (n_features,) first row of each column; NULL: its own number
    const int32_t* fields  # (n_rows,) NULL: all are summed together
    const int32_t* bins  # (n_numbers + 1,) first knot of each number
    const int32_t* firsts  # (n_numbers,) row of the first knot
    const char* knots       # (n_knots,)
    const char* steepness  # (n_knots,) one over the distance from a knot to the next
    const char* shift  # (n_outputs,) shift of raw outputs
    const char* scale
    LossSpec loss


cdef Py_ssize_t most_entries(
    const Machine* machine, const Rows* rows, const int64_t* order, Py_ssize_t at, Py_ssize_t n
) noexcept nogil
cdef Py_ssize_t take_entries(
    const Machine* machine, floating* x, const Rows* rows, const int64_t* order, Py_ssize_t at,
    Py_ssize_t n, Py_ssize_t ahead, floating* values, int* places, int* starts, Py_ssize_t stored,
) noexcept nogil
