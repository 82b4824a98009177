from dps._kernels.buffer cimport Buffer
from dps._runtime.synchronous cimport SynchronousChannel


cdef class HybridChannel(SynchronousChannel):
    cdef Buffer table_keys    # of what is pushed, those of the table; then the others
    cdef Buffer table_values

    cdef int apply_table(self) except -1 nogil
