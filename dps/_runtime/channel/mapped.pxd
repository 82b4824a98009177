from libc.stdint cimport int64_t

from dps._runtime.shared.activity cimport Activity
from dps._runtime.channel.base cimport ShardChannel
from dps._runtime.channel.key_slots cimport KeySlots
from dps._runtime.keyed cimport KeyedParams
from dps._runtime.updates cimport BoundUpdate
from dps._runtime.shared.words cimport Words

# The payloads of ranks.
cdef struct Slots:
    char* at  # the slots of all ranks that fill one
    Py_ssize_t stride   # in elements
    int n  # number of slots
    int own  # this rank's slot; -1: another rank of its host fills one for it
    const int64_t* ranks  # (n,) ranks of the slots
    Py_ssize_t[2] room  # allocated bytes of the rank's slot, and of its late one
    int64_t* rows  # rows of each
    int64_t all_rows  # rows of the sum

# Vectors in some memory.
cdef struct Payload:
    const char* given  # the gradient until the step is finished; NULL: it has been received
    const char* result  # the payload of the answer

# The elements that this rank reduces for all.
cdef struct Slice:
    int place  # number of the slice; -1: none
    int n  # number of slices
    Py_ssize_t start
    Py_ssize_t stop

# Messages of a ring.
cdef struct Ring:
    char* at
    Py_ssize_t stride  # bytes from one to the next
    Py_ssize_t places
    int64_t* rows

# Elements that are processed at a time.
cdef struct Scratch:
    char* at
    Py_ssize_t n


cdef class MappedChannel(ShardChannel):
    cdef object window
    cdef int rank
    cdef int shard  # its row of the account
    cdef Words words
    cdef Words store_words  # the words of the shard's store
    cdef char* params
    cdef char* state  # rows of `size` elements
    cdef Slots slots
    cdef Slice slice
    cdef bint one_applies  # the rank that arrives last works for all: `slice` is the whole
    cdef Ring ring
    cdef Scratch scratch
    cdef char* total
    cdef double[:, :, ::1] notes    # (2, n_ranks, NOTES) of the window
    cdef BoundUpdate update
    cdef Payload payload
    cdef double tick
    cdef object slow_wait  # called during long waits
    cdef Activity activity
    cdef KeyedParams keyed  # None if replicas hold the parameters
    cdef KeySlots key_slots  # None if no step goes by keys

    cdef char* own_slot(self) noexcept nogil
    cdef int wait(self, int field, int word, int64_t value) except -1 nogil
    cdef const char* _own(self) noexcept nogil
    cdef int reserve(self, bint late, Py_ssize_t nbytes) except -1 nogil
    cdef bint by_keys(self) noexcept nogil
    cdef void count(self, Py_ssize_t nbytes) noexcept nogil
    cdef int fill(self, int n_cuts) except -1 nogil
    cdef int _fill_keys(self, char* slot, int n_cuts) except -1 nogil
    cdef Py_ssize_t given_size(self) noexcept nogil
    cdef Py_ssize_t given_bytes(self) noexcept nogil
    cdef bint _arrived(self) noexcept nogil
    cdef int await_arrivals(self) except -1 nogil
    cdef void sum_rows(self) noexcept nogil
    cdef void _used(self) noexcept nogil
    cdef double divisor(self) noexcept nogil
    cdef int use(self, Py_ssize_t first, Py_ssize_t last) except -1 nogil
    cdef bint _to_total(self, Py_ssize_t first, Py_ssize_t last) noexcept nogil
    cdef bint takes(self, int64_t coding) noexcept nogil
    cdef int done(self) except -1 nogil
    cdef int await_done(self) except -1 nogil
    cdef bint reduce(self, const int64_t* rows, int n_slots) except -1 nogil
    cdef int reduce_slice(self) except -1 nogil
    cdef int pull(self, char* taken) except -1 nogil
    cdef int push(self) except -1 nogil
    cdef int arrive(self) except -1 nogil
    cdef int pushed(self, char* taken) except -1 nogil
    cdef int has_come(self, int place, int64_t rows, int64_t sequence) noexcept nogil
    cdef int give(self, const char* part, char* taken) noexcept nogil
    cdef int _finish_mean(self, char* taken) except -1 nogil
    cdef int _finish_broadcast(self, char* taken) except -1 nogil
    cdef int answer_with(self, const char* result, Py_ssize_t n) noexcept nogil
    cdef Py_ssize_t _merge(self, const int64_t* rows, int n_slots) except -1 nogil
    cdef int use_keys(self, Py_ssize_t n) except -1 nogil
    cdef bint takes_ids(self) noexcept nogil
    cdef int begin_epoch(self) except -1 nogil
    cdef tuple rates_of_epoch(self)
    cdef const char* values_of_picks(self) except? NULL nogil
    cdef int gather_keys(self, int64_t now, char* taken) except -1 nogil
