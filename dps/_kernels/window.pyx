# Owns the words of a window's header: how they are read, written and waited for
# by several threads and processes. Knows nothing of what the words mean, of
# parameters or of modes; dps/server/window.py gives them their names.
#
# Each word stands alone on a line of 128 bytes (two cache lines: the adjacent
# line prefetcher pulls pairs). A window has `n_global` words of its own and
# `n_fields` words for each rank. Words only ever hold int64 and are read and
# written with sequentially consistent atomics.
#
# Waiting is an event count. A writer stores its word, then rings: bell += 1,
# and wakes whoever sleeps if there is a sleeper. A waiter spins; then it counts
# itself a sleeper, reads the bell, looks at its condition *again* and sleeps
# only while the bell is what it read. If the writer's store came after that
# look, its ring comes later still, so the bell differs or the wake finds the
# sleeper: no wake-up is lost. A waiter that is killed asleep leaves `sleepers`
# one too high, which costs a system call a ring and nothing else. Sleeps are
# bounded all the same (0.05 s), so that a stopped window is always noticed.

from libc.stdint cimport int32_t, int64_t

cdef extern from "waiting.h" nogil:
    int DPS_IS_PORTABLE
    int DPS_FUTEX
    int64_t dps_load(const int64_t *word)
    void dps_store(int64_t *word, int64_t value)
    int64_t dps_add(int64_t *word, int64_t value)
    int dps_claim(int64_t *word, int64_t value)
    void dps_pause()
    double dps_now()
    void dps_sleep(int32_t *bell, int32_t heard, double seconds)
    void dps_wake(int32_t *bell)
    int32_t atomic_load32 "__atomic_load_n"(const int32_t *word, int order)
    int32_t atomic_add32 "__atomic_add_fetch"(int32_t *word, int32_t value, int order)
    int SEQ_CST "__ATOMIC_SEQ_CST"

cdef enum:
    LINE = 16                       # int64 words a line
    SPINS = 2000

PORTABLE = bool(DPS_IS_PORTABLE)
LINE_BYTES = LINE * 8

READY = 0
STOPPED = 1
LATE = 2


cdef class Header:
    cdef object _owner
    cdef int64_t[::1] _memory
    cdef int64_t *_base
    cdef readonly int n_ranks
    cdef readonly int n_global
    cdef readonly int n_fields
    cdef int _stop

    # The first two lines belong to the bell and its sleepers.
    def __cinit__(self, int64_t[::1] memory, int n_ranks, int n_global, int n_fields,
                  int stop):
        if n_ranks < 1 or n_global < 1 or n_fields < 1 or not 0 <= stop < n_global:
            raise ValueError("a header needs ranks, words and fields")
        if memory.shape[0] < (2 + n_global + n_ranks * n_fields) * LINE:
            raise ValueError(
                f"a header of {n_ranks} ranks takes "
                f"{(2 + n_global + n_ranks * n_fields) * LINE * 8} bytes, got "
                f"{memory.shape[0] * 8}"
            )
        self._memory = memory
        self._base = &memory[0]
        self.n_ranks = n_ranks
        self.n_global = n_global
        self.n_fields = n_fields
        self._stop = stop

    @staticmethod
    def nbytes(int n_ranks, int n_global, int n_fields):
        return (2 + n_global + n_ranks * n_fields) * LINE * 8

    cdef inline int64_t *_word(self, int word) noexcept nogil:
        return self._base + (2 + word) * LINE

    cdef inline int64_t *_rank_word(self, int rank, int field) noexcept nogil:
        return self._base + (2 + self.n_global + rank * self.n_fields + field) * LINE

    cdef inline void _ring(self) noexcept nogil:
        atomic_add32(<int32_t *> self._base, 1, SEQ_CST)
        if dps_load(self._base + LINE) > 0:
            dps_wake(<int32_t *> self._base)

    cdef int _check(self, int word) except -1:
        if not 0 <= word < self.n_global:
            raise IndexError(f"word {word} of {self.n_global}")
        return 0

    cdef int _check_rank(self, int rank, int field) except -1:
        if not 0 <= rank < self.n_ranks:
            raise IndexError(f"rank {rank} of {self.n_ranks}")
        if not 0 <= field < self.n_fields:
            raise IndexError(f"field {field} of {self.n_fields}")
        return 0

    def load(self, int word):
        self._check(word)
        return dps_load(self._word(word))

    def store(self, int word, int64_t value):
        self._check(word)
        dps_store(self._word(word), value)
        self._ring()

    def add(self, int word, int64_t value):
        self._check(word)
        cdef int64_t result = dps_add(self._word(word), value)
        self._ring()
        return result

    def rank_load(self, int rank, int field):
        self._check_rank(rank, field)
        return dps_load(self._rank_word(rank, field))

    def rank_store(self, int rank, int field, int64_t value):
        self._check_rank(rank, field)
        dps_store(self._rank_word(rank, field), value)
        self._ring()

    def rank_add(self, int rank, int field, int64_t value):
        self._check_rank(rank, field)
        return dps_add(self._rank_word(rank, field), value)

    def rank_claim(self, int rank, int field, int64_t value):
        self._check_rank(rank, field)
        return bool(dps_claim(self._rank_word(rank, field), value))

    cdef inline bint _ready(self, int rank_field, int word, int64_t value) noexcept nogil:
        cdef int rank
        if rank_field < 0:
            return dps_load(self._word(word)) >= value
        for rank in range(self.n_ranks):
            if dps_load(self._rank_word(rank, rank_field)) < value:
                return False
        return True

    cdef int _wait(self, int rank_field, int word, int64_t value,
                   double seconds) noexcept nogil:
        cdef int _spin
        cdef int32_t heard
        cdef double deadline, left, nap = 1e-6
        for _spin in range(SPINS):
            if self._ready(rank_field, word, value):
                return 0
            dps_pause()
        deadline = dps_now() + seconds
        while True:
            dps_add(self._base + LINE, 1)
            heard = atomic_load32(<int32_t *> self._base, SEQ_CST)
            if self._ready(rank_field, word, value):
                dps_add(self._base + LINE, -1)
                return 0
            left = deadline - dps_now()
            if dps_load(self._word(self._stop)) != 0 or left <= 0:
                dps_add(self._base + LINE, -1)
                return 2 if dps_load(self._word(self._stop)) == 0 else 1
            if DPS_FUTEX:
                nap = 0.05
            elif nap < 1e-3:
                nap *= 2
            dps_sleep(<int32_t *> self._base, heard, nap if nap < left else left)
            dps_add(self._base + LINE, -1)

    def ready(self, int field, int64_t value):
        self._check_rank(0, field)
        return bool(self._ready(field, 0, value))

    def word_ready(self, int word, int64_t value):
        self._check(word)
        return bool(self._ready(-1, word, value))

    def wait(self, int field, int64_t value, double seconds):
        self._check_rank(0, field)
        cdef int result
        with nogil:
            result = self._wait(field, 0, value, seconds)
        return result

    def word_wait(self, int word, int64_t value, double seconds):
        self._check(word)
        cdef int result
        with nogil:
            result = self._wait(-1, word, value, seconds)
        return result
