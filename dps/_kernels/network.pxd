from libc.stdint cimport int64_t, uint64_t

from dps._kernels.block_gradient cimport BlockGradient
from dps._kernels.buffer cimport Buffer
from dps._kernels.layers cimport Layers
from dps._kernels.losses cimport LossSpec


cdef struct Network:
    double range            # how far scaled numbers go
    Py_ssize_t n_plain      # columns that go into the first layer as they are
    Py_ssize_t n_numbers
    Py_ssize_t width        # of a number's embedding
    Py_ssize_t n_bins       # of all numbers
    Py_ssize_t n_dense      # numbers and their embeddings: the first layer's dense inputs
    Py_ssize_t n_layers
    Py_ssize_t block        # rows that go through together
    const int64_t* places   # (n_features,): of a number; or -1 - p of a plain column
    const int64_t* sizes    # (n_layers + 1,), from the inputs to the outputs
    Py_ssize_t weights      # where the first layer's lie in the parameters
    double gain             # of them
    const int64_t* bins     # (n_numbers + 1,): where those of each number begin
    Py_ssize_t embedding    # where it lies in the parameters
    Py_ssize_t scale
    double scale_gain
    const char* centre      # (n_numbers,)
    const char* spread      # (n_numbers,), one over it
    const char* edges       # (n_bins + n_numbers,)
    const char* steepness   # (n_bins,), one over each bin's width
    const char* output_scale    # (k,)
    const char* output_shift    # (k,)
    LossSpec loss


cdef class NetworkGradient(BlockGradient):
    cdef Network net
    cdef Layers layers
    cdef bint prepared          # whether what follows from the parameters has been made
    cdef Buffer plain_columns   # (stored,) int64
    cdef Buffer plain_values    # (stored,)
    cdef char* plain_starts     # (block + 1,) int64
    cdef char* x                # (block, n_numbers)
    cdef char* inputs           # (block, n_dense)
    cdef char* at_bin           # (block, n_numbers) int64
    cdef char* inside           # (block, n_numbers)
    cdef char* first            # (n_dense, sizes[1]): the first layer's weights times the scale
    cdef char* first_grad
    cdef char* prefix           # (n_bins, width): sums of the rows of the embedding before each
    cdef char* whole_bins       # (n_bins, width)
    cdef char* part_bins

    cdef int _make_room(self) except -1
