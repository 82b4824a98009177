cdef enum:
    PARTS = 8  # largest number of parts of a message


cdef class Wire:
    cdef object look
    cdef object lost

    cdef int send(self, const void** parts, const Py_ssize_t* sizes, int n) except -1 nogil
    cdef int flush(self) except -1 nogil
    cdef bint receive(self, void* place, Py_ssize_t n) except -1 nogil


cdef class SocketWire(Wire):
    cdef object socket
    cdef object closing  # a lock, so that `shut` does not hit another socket with the same number
    cdef int fd
    cdef char* buffer  # received bytes, first .. last
    cdef Py_ssize_t first
    cdef Py_ssize_t last

    cdef int _late(self) except -1 nogil


cdef class ObjectWire(Wire):
    cdef readonly object over
    cdef bint collects
