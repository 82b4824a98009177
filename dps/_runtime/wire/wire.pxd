cdef enum:
    PARTS = 8           # of one message, at most


cdef class Wire:
    cdef object look
    cdef object lost

    cdef int send(self, const void** parts, const Py_ssize_t* sizes, int n) except -1 nogil
    cdef int flush(self) except -1 nogil
    cdef bint receive(self, void* place, Py_ssize_t n) except -1 nogil


cdef class SocketWire(Wire):
    cdef object socket
    cdef object closing     # a lock: what is shut is not another's socket of the same number
    cdef int fd
    cdef char* buffer   # bytes that have come, first .. last
    cdef Py_ssize_t first
    cdef Py_ssize_t last

    cdef int _late(self) except -1 nogil


cdef class ObjectWire(Wire):
    cdef readonly object over
    cdef bint collects
