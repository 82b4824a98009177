from libc.stdint cimport uint64_t

cdef extern from "subnormal.h" nogil:
    uint64_t dps_no_subnormals()
    void dps_restore(uint64_t mode)
