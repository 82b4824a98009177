from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._runtime.mapped cimport MappedChannel
from dps._runtime.message cimport Answer, Request
from dps._runtime.tensors cimport TensorPart
from dps._runtime.wire cimport Wire


cdef class Service:
    cdef MappedChannel channel        # of a rank; None: a caller is served
    cdef list parts             # of tensors: what a caller may ask of
    cdef void** held            # the same
    cdef int64_t n_held
    cdef int64_t entry          # where the last write of a caller is noted
    cdef Wire wire
    cdef object respond
    cdef Request* request
    cdef Answer* answer
    cdef Request own_request    # of a caller; a rank's are its channel's
    cdef Answer own_answer
    cdef bint working           # on a request that has come whole
    cdef char* slot
    cdef Py_ssize_t slot_size
    cdef Buffer values            # of a part, and those that are wanted
    cdef Buffer results
    cdef Buffer keys              # that have come last
    cdef Buffer sparse            # keys and values of an answer, side by side

    cdef bint _serve(self) except -1 nogil
    cdef int _receive(self) except -1 nogil
    cdef int _receive_round(self) except -1 nogil
    cdef int _receive_account(self) except -1 nogil
    cdef int _serve_part(self) except -1 nogil
    cdef int _use_part(self, TensorPart part) except -1 nogil
    cdef int _take(self, void* place, Py_ssize_t nbytes) except -1 nogil
    cdef int _refuse(self) except -1 nogil
    cdef int _step(self) except -1 nogil
    cdef int _reply_by_keys(self) except -1 nogil
    cdef int _reply(self, const char* result) except -1 nogil
