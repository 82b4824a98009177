from libc.stdint cimport int64_t

from dps._kernels.room cimport Room
from dps._runtime.ends cimport MappedEnd
from dps._runtime.wire cimport Wire


cdef class Service:
    cdef MappedEnd end
    cdef Wire wire
    cdef object answer
    cdef bint stepping
    cdef char* slot
    cdef Py_ssize_t slot_size
    cdef Room keys              # that have come last
    cdef Room sparse            # keys and values of an answer, side by side

    cdef bint _serve(self) except -1 nogil
    cdef int _receive(self) except -1 nogil
    cdef int _receive_round(self) except -1 nogil
    cdef int _receive_account(self) except -1 nogil
    cdef int _refuse(self) except -1 nogil
    cdef int _step(self) except -1 nogil
    cdef int _reply(self, int status) except -1 nogil
