from libc.stdint cimport int64_t

from dps._kernels.numbers cimport Numbers
from dps._kernels.room cimport Room
from dps._kernels.table cimport Table
from dps._runtime.updates cimport BoundUpdate
from dps._runtime.wire cimport Wire
from dps._runtime.words cimport Words

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass

cpdef enum Order:
    # What a caller asks of a tensor's part at a shard.
    CALL            # a function, in Python
    READ            # elements
    PUSH            # a gradient, for the optimizer
    ADD             # elements, to be added
    ASSIGN          # elements, to be put in place of those there are

cpdef enum Ending:
    # How that ended; but for the last two, nothing has been changed where it is not DONE.
    DONE
    NOT_FINITE      # what was given
    OUTSIDE         # of what the part has
    FULL_TABLE      # no room for another row
    GONE            # the server was closed
    OVERFLOWN       # what came of it is not finite
    FAILED          # an exception follows

# A request as it crosses a wire. Behind it: n keys where it is by keys, and the values.
cdef struct Request:
    int64_t order
    int64_t tensor
    int64_t start       # the first element; -1: by keys
    int64_t n           # elements, or keys; bytes of a call
    int64_t back        # whether the elements are wanted, as they are then
    double rows         # behind a gradient that is a sum

# Its answer; behind it: the elements that are wanted, or bytes.
cdef struct Answer:
    int64_t ending
    int64_t nbytes
    int64_t writes      # of the part, so far


cdef class TensorPart:
    cdef pthread_mutex_t mutex
    cdef Words words
    cdef Numbers numbers
    cdef Table table            # of no rows: a tensor
    cdef BoundUpdate update
    cdef double rate
    cdef double patience        # seconds that a function may take
    cdef char* params
    cdef char* state
    cdef Py_ssize_t size
    cdef Py_ssize_t width       # elements of a key
    cdef Py_ssize_t n_keys
    cdef Py_ssize_t room        # rows of the table that are free at least
    cdef object store           # keeps the memory alive

    cdef bint hold(self) except -1 nogil
    cdef void let_go(self) noexcept nogil
    cdef bint fits(self, const Request* request, const int64_t* keys) noexcept nogil
    cdef int run(
        self, const Request* request, int64_t* keys, char* values, char* back, Answer* answer
    ) except -1 nogil
    cdef int have_room(self, const int64_t* keys, Py_ssize_t n) except -1 nogil
    cdef int write(self, const Request* request, int64_t* keys, char* values) except -1 nogil
    cdef bint change(
        self, int64_t order, char* at, const char* values, Py_ssize_t n, Py_ssize_t first,
        int64_t step
    ) except -1 nogil
    cdef bint look(self, const Request* request, const int64_t* keys, char* out) noexcept nogil
    cdef void copy(self, const Request* request, const int64_t* keys, char* out) noexcept nogil


cdef class TensorService:
    cdef list _kept
    cdef void** parts
    cdef int n_parts
    cdef Wire wire
    cdef Room keys
    cdef Room values
    cdef Room results
    cdef Request request
    cdef Answer answer
    cdef bint working

    cdef bint serve(self) except -1 nogil
    cdef int _expect(self, void* place, Py_ssize_t nbytes) except -1 nogil
    cdef int reply(self, const char* result) except -1 nogil


cdef class Caller:
    cdef Wire wire
    cdef Answer answer
    cdef readonly bint broken

    cdef int begin(
        self, Request* request, const void* keys, const void* values, Py_ssize_t n
    ) except -1
