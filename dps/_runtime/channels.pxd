from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._kernels.keys cimport KeyList
from dps._kernels.lazy cimport Held, LazyUpdate
from dps._kernels.table cimport Table
from dps._kernels.typed_ops cimport TypedOps
from dps._runtime.activity cimport Activity
from dps._runtime.message cimport Answer, NOTES, Request
from dps._runtime.updates cimport BoundUpdate
from dps._runtime.wire cimport Wire
from dps._runtime.words cimport Words

# Keys in a shard's own numbers, and where their values are among those of all shards.
cdef struct Picks:
    int64_t* keys
    int64_t* at         # NULL: they are all
    Py_ssize_t n

# A sparse mean, in parts.
cdef struct Sparse:
    Py_ssize_t n_parts
    const int64_t** keys
    const char** values
    int64_t* counts


cdef class ShardChannel:
    cdef readonly Py_ssize_t size
    cdef readonly int n_ranks
    cdef TypedOps numbers
    cdef Request request
    cdef Answer answer
    cdef Picks picks
    cdef Sparse mean                # of updates by keys that each rank applies
    cdef readonly Py_ssize_t key_width  # elements that a key stands for; 0: all go together
    cdef Py_ssize_t n_keys
    cdef Py_ssize_t key_bytes       # of its elements
    cdef Buffer values                # of the picks, side by side
    cdef Buffer pick_keys
    cdef Buffer pick_at
    cdef Py_ssize_t n_ranges
    cdef const int64_t* ranges      # (n_ranges, 2) of the whole vector
    cdef const int64_t* key_ranges  # the same of keys
    cdef const int64_t* key_offsets  # where each begins in the shard's
    cdef readonly bint far
    cdef list _arrays               # keeps the memory alive

    cdef char* keep(self, array) except? NULL
    cdef void pick_all(self, int64_t* keys, Py_ssize_t n) noexcept nogil
    cdef int pick_none(self, Py_ssize_t most) except -1 nogil
    cdef int begin(self, const char* given) except -1 nogil
    cdef int finish(self, char* taken) except -1 nogil
    cdef int say(self) except -1 nogil
    cdef int put(
        self, int place, const char* values, Py_ssize_t n, int64_t rows, int64_t sequence
    ) except -1 nogil
    cdef void _place(self, const char* part, char* whole) noexcept nogil
    cdef void _globalise(self, int64_t* keys, Py_ssize_t n) noexcept nogil


cdef class MappedChannel(ShardChannel):
    cdef Words words
    cdef Words kept                 # the words of the shard's store
    cdef int rank
    cdef int place                  # which of the slices this rank has; -1: none
    cdef int n_places
    cdef int shard
    cdef char* params
    cdef char* state                # rows of `size`
    cdef object window
    cdef char* slots                # of all ranks
    cdef Py_ssize_t[2] room         # bytes of the rank's slot, and of its late one, that are there
    cdef Py_ssize_t slot_stride     # in elements
    cdef char* total
    cdef double[:, :, ::1] notes    # (2, n_ranks, NOTES) of the window
    cdef Py_ssize_t start           # the elements that this rank works on for all
    cdef Py_ssize_t stop
    cdef BoundUpdate update
    cdef Py_ssize_t block           # elements that are worked on at a time
    cdef char* scratch              # of a block
    cdef int64_t* counts
    cdef int64_t rows               # behind what has been summed
    cdef const char* given          # what is handed over, until it is finished
    cdef double tick
    cdef object until               # called where a wait is long
    cdef Activity activity
    cdef char* ring                 # messages of a ring
    cdef Py_ssize_t ring_stride     # in bytes
    cdef Py_ssize_t ring_places
    cdef int64_t* ring_rows
    cdef const char* result         # what the answer's payload is
    # Of updates by keys.
    cdef LazyUpdate lazy
    cdef object rates
    cdef int64_t epoch
    cdef Held held
    cdef Py_ssize_t slice_keys      # of a slice
    cdef int64_t* slot_keys         # of all ranks
    cdef Py_ssize_t key_stride
    cdef int64_t* slot_counts       # (n_ranks, n_ranks)
    cdef int64_t* total_keys
    cdef int64_t* total_counts
    cdef Table table
    cdef int64_t lasting            # updates that a row of it stays untouched
    cdef Buffer found                 # rows of the picks, in the table
    cdef KeyList merged
    cdef Buffer sums                  # at the merged keys

    cdef int wait(self, int field, int word, int64_t value) except -1 nogil
    cdef const char* _own(self) noexcept nogil
    cdef bint _deliver(self, const char* whole, char* part) noexcept nogil
    cdef int reserve(self, bint late, Py_ssize_t nbytes) except -1 nogil
    cdef int _fill(self) except -1 nogil
    cdef int64_t _await(self) except -1 nogil
    cdef double divisor(self) noexcept nogil
    cdef int arrive(self) except -1 nogil
    cdef int use(self, Py_ssize_t first, Py_ssize_t last) except -1 nogil
    cdef int done(self) except -1 nogil
    cdef int share(self) except -1 nogil
    cdef int push(self) except -1 nogil
    cdef int pushed(self, char* taken) except -1 nogil
    cdef int pull_keys(self, char* taken) except -1 nogil
    cdef int push_keys(self) except -1 nogil
    cdef Py_ssize_t merge_keys(self) except -1 nogil
    cdef Py_ssize_t find_rows(self) except -1 nogil
    cdef Py_ssize_t make_rows(
        self, int64_t* keys, char* values, Py_ssize_t n, int64_t now
    ) except -1 nogil
    cdef bint flush_keys(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil
    cdef bint _flush(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil
    cdef void expire_rows(self, Py_ssize_t first, Py_ssize_t last) noexcept nogil
    cdef void lay_out(self, Py_ssize_t n) noexcept nogil
    cdef int pushed_keys(self) except -1 nogil
    cdef int use_keys(self, Py_ssize_t n) except -1 nogil
    cdef int begin_epoch(self) except -1 nogil
    cdef const char* values_of_picks(self) except? NULL nogil
    cdef bint deliver_keys(self, Py_ssize_t n_ranks) except -1 nogil
    cdef int gather_keys(self, int64_t now, char* taken) except -1 nogil
    cdef int has_come(self, int place, int64_t rows, int64_t sequence) noexcept nogil
    cdef int _give(self, const char* part, char* taken) noexcept nogil
    cdef int _finish_mean(self, char* taken) except -1 nogil
    cdef int _finish_broadcast(self, char* taken) except -1 nogil
    cdef int answer_with(self, const char* result, Py_ssize_t n) noexcept nogil


cdef class HostReducer(MappedChannel):
    cdef readonly bint leads
    cdef char* answered             # notes and status of the leader's answer
    cdef Py_ssize_t answer_stride

    cdef int sum_up(
        self, int64_t op, const char* given, int64_t rows, const double* notes, int64_t sequence
    ) except -1 nogil
    cdef int _sum_keys(self) except -1 nogil
    cdef void take_means(self, int number, ShardChannel channel) noexcept nogil
    cdef int publish(self, int status, const double* notes) noexcept nogil
    cdef int await_answer(self, double* notes) except -1 nogil


cdef class StreamChannel(ShardChannel):
    cdef Wire wire
    cdef readonly bint pending      # inside a message, or an answer has not been received
    cdef object raised
    cdef Activity activity
    cdef int shard
    cdef int64_t accounted          # when the rank has given account of itself, in nanoseconds
    cdef Buffer came_keys

    cdef int send(self, const char* given) except -1 nogil
    cdef int _send_whole(self, const void** parts, const Py_ssize_t* sizes) except -1 nogil
    cdef int _account(self, Request* request, const void** parts, Py_ssize_t* sizes) noexcept nogil
    cdef int receive(self, char* taken) except -1 nogil
    cdef int _payload(self, char* taken) except -1 nogil
    cdef int _expect(self, Py_ssize_t nbytes) except -1 nogil
