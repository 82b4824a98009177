"""Memory that grows with the batches."""
from libc.stdlib cimport free, realloc


cdef class Buffer:
    """A piece of memory."""

    def __cinit__(self):
        self.fit(64)

    def __dealloc__(self):
        free(self.at)

    cdef char* fit(self, Py_ssize_t nbytes) except NULL nogil:
        """Have room for `nbytes` bytes, keeping the contents; return the address."""
        cdef char* grown
        if nbytes > self.nbytes:
            nbytes = max(nbytes, 2 * self.nbytes)
            grown = <char*> realloc(self.at, nbytes)
            if grown is NULL:
                with gil:
                    raise MemoryError(f"{nbytes} bytes")
            self.at, self.nbytes = grown, nbytes
        return self.at
