from libc.stdint cimport int64_t

from dps._kernels.block_gradient cimport BlockGradient
from dps._kernels.buffer cimport Buffer
from dps._kernels.entries cimport Machine
from dps._kernels.layers cimport Layers
from dps._kernels.rows cimport KeyedRows


cdef class FactorizationGradient(BlockGradient):
    cdef Machine machine
    cdef Layers layers          # or None
    cdef bint lays  # whether dense rows are copied
    cdef Buffer values  # (stored,) values of entries
    cdef Buffer found  # (stored,) int: rows of entries
    cdef Buffer ids  # ids of a batch's keys, for a table whose rows are created on first use
    cdef char* starts           # (block + 1,) int
    cdef char* x                # (laid, n_features): dense rows; or (n_numbers,) of a sparse one
    cdef char* linear           # (block, n_outputs)
    cdef char* pooled           # (block, apart)
    cdef char* square           # (block, n_factors)
    cdef char* c                # (block, apart)
    cdef char* raw              # (block, n_outputs)
    cdef char* slope

    cdef const int64_t* _rows_of_keys(self, KeyedRows keys) noexcept nogil
