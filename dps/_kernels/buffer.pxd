cdef class Buffer:
    cdef char* at
    cdef Py_ssize_t nbytes

    cdef char* fit(self, Py_ssize_t nbytes) except NULL nogil
