from libc.stdint cimport int64_t

from dps._kernels.push cimport ExchangePush


cdef class Meeting(ExchangePush):
    cdef double[:, :, ::1] notes    # (2, n_ranks, width)

    cdef int bring(
        self, const char* given, int64_t rows, double* notes, Py_ssize_t n_notes
    ) except -1 nogil
    cdef int hand_out(
        self, const char* given, double* notes, Py_ssize_t n_notes
    ) except -1 nogil
    cdef int _broadcast(
        self, const char* given, const double* notes, Py_ssize_t n_notes, int64_t parity
    ) except -1 nogil
    cdef object _told(self, notes)
    cdef const char* _vector(self, values) except NULL
