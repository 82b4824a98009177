from libc.stdint cimport int64_t, uint64_t

from dps._kernels.block_gradient cimport BlockGradient
from dps._kernels.buffer cimport Buffer
from dps._kernels.layers cimport Layers
from dps._kernels.losses cimport LossSpec


cdef struct Network:
    double range  # bound of scaled numbers
    Py_ssize_t n_plain  # columns that the first layer uses as they are
    Py_ssize_t n_numbers
    Py_ssize_t width  # width of a number's embedding
    Py_ssize_t n_bins  # number of all bins
    Py_ssize_t n_dense  # numbers and their embeddings: dense inputs of the first layer
    Py_ssize_t n_layers
    Py_ssize_t block  # rows that are processed together
    const int64_t* places  # (n_features,) number of a numeric column, or -1 - p for another column
    const int64_t* sizes  # (n_layers + 1,) from inputs to outputs
    Py_ssize_t weights  # the first layer's position in the parameters
    double gain  # gain of the first layer's weights
    const int64_t* bins  # (n_numbers + 1,) first bin of each number
    Py_ssize_t embedding  # its position in the parameters
    Py_ssize_t scale
    double scale_gain
    const char* centre      # (n_numbers,)
    const char* spread  # (n_numbers,) one over the spread
    const char* edges       # (n_bins + n_numbers,)
    const char* steepness   # (n_bins,), one over each bin's width
    const char* output_scale    # (k,)
    const char* output_shift    # (k,)
    LossSpec loss


cdef class NetworkGradient(BlockGradient):
    cdef Network net
    cdef Layers layers
    cdef bint prepared  # whether values that depend on the parameters are up to date
    cdef Buffer plain_columns   # (stored,) int64
    cdef Buffer plain_values    # (stored,)
    cdef char* plain_starts     # (block + 1,) int64
    cdef char* x                # (block, n_numbers)
    cdef char* inputs           # (block, n_dense)
    cdef char* at_bin           # (block, n_numbers) int64
    cdef char* inside           # (block, n_numbers)
    cdef char* first            # (n_dense, sizes[1]): the first layer's weights times the scale
    cdef char* first_grad
    cdef char* prefix  # (n_bins, width) sums of the embedding's rows before each bin
    cdef char* whole_bins       # (n_bins, width)
    cdef char* part_bins

    cdef int _make_room(self) except -1
