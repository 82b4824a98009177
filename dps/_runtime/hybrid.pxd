from dps._kernels.room cimport Room
from dps._runtime.synchronous cimport SynchronousEnd


cdef class HybridEnd(SynchronousEnd):
    cdef Room table_keys    # of what is pushed, those of the table; then the others
    cdef Room table_values

    cdef int apply_table(self) except -1 nogil
