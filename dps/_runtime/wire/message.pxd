from libc.stdint cimport int64_t

from dps._runtime.wire.wire cimport Wire

cpdef enum Op:
    # Requests to a shard. Of ranks and callers:
    CALL  # call a function in Python
    # Of a rank, in its group's window:
    ACCOUNT  # none: it has the rank's counters, and gets no answer
    PULL  # read the parameters
    PUSH  # push a gradient; the answer depends on the mode
    PULL_KEYS  # read the parameters at some keys
    PUSH_KEYS  # push a gradient at those keys, or at others that are sent along
    MEAN  # average a vector of each rank
    BROADCAST  # broadcast rank 0's vector
    RING  # store a message of a ring; it gets no answer
    # Of a caller, for a part of a tensor:
    READ  # read elements
    APPLY  # apply a gradient with the optimizer
    ADD  # add to elements
    ASSIGN  # replace elements
    FILL  # replace elements of a mirror, of parameters or state, by those of the shard

cpdef enum Ending:
    # How a request ended. Except after RAN and BAD_UPDATE a part is unchanged.
    RAN
    BAD_GRADIENT  # the given values are not finite
    BAD_UPDATE  # the updated values are not finite
    STOPPED  # the fit was stopped, or the server closed
    RAISED  # an exception at the shard, which follows
    OUTSIDE  # rows that the part does not have
    FULL_TABLE  # no room for another row
    MOVED  # the mirror must be asked, or the shard

cpdef enum Coding:
    # How whole vectors of a push and of its answer are encoded.
    FULL  # unchanged
    NARROW          # as bfloat16
    CHANGES  # as bfloat16, but for parameters only the changes since the last answer

cdef enum:
    NOTES = 8  # doubles that accompany a message

# A request on a wire; a payload of `nbytes` follows: keys, then values.
cdef struct Request:
    int64_t op
    int64_t nbytes
    int64_t n_keys  # keys before the values; -1: those last pulled; for a ring the place
    # Fields of a rank:
    int64_t sequence  # number of a request that changes something, from 1
    int64_t rows  # rows of the gradient; for FILL 0 for parameters, from 1 for state
    int64_t step  # number of this update, or of the rank's own step
    int64_t based  # in async: updates that the gradient's parameters include
    int64_t epoch
    double rate
    int64_t coding  # for PUSH a `Coding`
    int64_t last  # whether this is the last push of an epoch, after which no rounding error is kept
    double notes[NOTES]
    # Fields of a caller:
    int64_t part
    int64_t start  # the first of `n_keys` elements; -1: by keys
    int64_t back  # whether the elements are returned, as they are afterwards
    double weight  # weight of a gradient that is a sum
    int64_t caller  # id of the caller, a random number
    int64_t number  # number of the caller's requests, from 1
    int64_t again  # whether it may be a repetition
    int64_t entry  # entry of this caller's last write; -1: none
    int64_t passed  # whether a shard forwards it to its mirror

# Its answer; a payload of `nbytes` follows.
cdef struct Answer:
    int64_t status
    int64_t nbytes
    int64_t waited      # nanoseconds
    int64_t before  # updates of the shard before this push
    int64_t version  # updates that the values include; for a part the number of writes
    int64_t n_keys  # keys before the values
    double notes[NOTES]


cdef class Caller:
    cdef Wire wire
    cdef Answer answer
    cdef readonly bint broken
    cdef int64_t name           # a random number
    cdef int64_t number  # number of its last request

    cdef int begin(
        self, const Request* request, const void* keys, const void* values
    ) except -1 nogil
    cdef int hear_status(self) except -1 nogil
