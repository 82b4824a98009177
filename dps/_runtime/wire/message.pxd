from libc.stdint cimport int64_t

from dps._runtime.wire.wire cimport Wire

cpdef enum Op:
    # Requests to a shard: by ranks and callers alike,
    CALL            # a function, in Python
    # by a rank, in its group's window,
    ACCOUNT         # nothing: it says what it has counted, and gets no answer
    PULL            # the parameters
    PUSH            # a gradient; what the mode answers
    PULL_KEYS       # the parameters at some keys
    PUSH_KEYS       # a gradient at those keys, or at others that come with it
    MEAN            # a vector of each rank; their mean
    BROADCAST       # rank 0's vector
    RING            # nothing: it puts a message of a ring there, and gets no answer
    # and by a caller, of a part of a tensor.
    READ            # elements
    APPLY           # a gradient, for the optimizer
    ADD             # elements, to be added
    ASSIGN          # elements, to be put in place of those there are
    FILL            # elements as a shard has them, of parameters or state, for its mirror

cpdef enum Ending:
    # The ending. A part is unchanged unless it is RAN or BAD_UPDATE.
    RAN
    BAD_GRADIENT    # what was given is not finite
    BAD_UPDATE      # what came of it is not finite
    STOPPED         # the fit, or the server was closed
    RAISED          # at the shard: the exception follows
    OUTSIDE         # of what the part has
    FULL_TABLE      # no room for another row
    MOVED           # the other one of a shard and its mirror is to be asked

cpdef enum Coding:
    # How the whole vectors of a push and of its answer cross a wire.
    FULL            # as they are
    NARROW          # as bfloat16
    CHANGES         # likewise, but of the parameters only what has changed since the last answer

cdef enum:
    NOTES = 8       # doubles that go along with a message

# A request as it crosses a wire; a payload of `nbytes` follows: keys, then values.
cdef struct Request:
    int64_t op
    int64_t nbytes
    int64_t n_keys      # keys in front of the values; -1: those last pulled; of a ring: the place
    # Fields of a rank.
    int64_t sequence    # of what changes something, from 1
    int64_t rows        # behind the gradient; of FILL: 0 of parameters, from 1 on of state
    int64_t step        # number of this update, or of the rank's own step
    int64_t based       # in async: updates that the gradient's parameters are known to hold
    int64_t epoch
    double rate
    int64_t coding      # of PUSH: a `Coding`
    int64_t last        # whether this is the last push of an epoch, behind which nothing is carried
    double notes[NOTES]
    # Fields of a caller.
    int64_t part
    int64_t start       # the first element of `n_keys`; -1: by keys
    int64_t back        # whether the elements are wanted, as they are then
    double weight       # behind a gradient that is a sum
    int64_t caller      # who asks, a random number
    int64_t number      # of the caller's requests, from 1
    int64_t again       # whether it may have come before
    int64_t entry       # where the last write of this caller is noted; -1: nowhere
    int64_t passed      # whether a shard passes it on to its mirror

# Its answer; a payload of `nbytes` follows.
cdef struct Answer:
    int64_t status
    int64_t nbytes
    int64_t waited      # nanoseconds
    int64_t before      # updates of the shard before this push
    int64_t version     # updates that what follows is known to hold; of a part, writes so far
    int64_t n_keys      # keys in front of the values
    double notes[NOTES]


cdef class Caller:
    cdef Wire wire
    cdef Answer answer
    cdef readonly bint broken
    cdef int64_t name           # a random number
    cdef int64_t number         # of its last request

    cdef int begin(
        self, const Request* request, const void* keys, const void* values
    ) except -1 nogil
    cdef int hear_status(self) except -1 nogil
