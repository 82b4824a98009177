# Owns the words of a window's header: how they are read, written and waited for
# by several threads and processes. Knows nothing of what the words mean, of
# parameters or of modes; dps/server/group/window.py gives them their names.
#
# Each word stands alone on a line of 128 bytes (two cache lines: the adjacent
# line prefetcher pulls pairs). A window has `n_global` words of its own and
# `n_fields` words for each rank. Words only ever hold int64 and are read and
# written with sequentially consistent atomics.
#
# Waiting is an event count. A writer stores its word, then rings: bell += 1,
# and if there are sleepers it wakes those that wait for its word. A waiter looks as
# often as was worth it lately, and then offers its core to others for a while, since a
# core that has gone to sleep is slow to wake. With more threads than cores, or beside
# other work, looks keep the core from the thread that is awaited, and soon are few. Where
# threads serve ranks that are far, they are few from the start. Then it counts itself a
# sleeper, reads the bell, looks at its condition *again* and sleeps only while the
# bell is what it read. If the writer's store came after that look, its ring comes
# later still, so the bell differs or the wake finds the sleeper: no wake-up is lost.
# A sleeper has a bit for the first word that it lacks and one for `stop`, a ring
# the bit of its word: one of 32 by a hash of its number, so that few ranks share the
# bit of a field. A wait for several words sleeps for one after the other.
# A waiter that is killed asleep leaves their count one too high, which costs a system
# call a ring and nothing else. Sleeps are bounded all the same (0.05 s), so that a
# stopped window is always noticed.

from libc.stdint cimport int32_t, int64_t, uint32_t

cdef extern from "waiting.h" nogil:
    int DPS_IS_PORTABLE
    int DPS_FUTEX
    int DPS_FEWEST_LOOKS
    int32_t dps_looks
    void dps_looked(int worth_it)
    double dps_crowded
    double dps_offered(double before, double now)
    int64_t dps_load(const int64_t *word)
    void dps_store(int64_t *word, int64_t value)
    int64_t dps_add(int64_t *word, int64_t value)
    int dps_claim(int64_t *word, int64_t value)
    int dps_replace(int64_t *word, int64_t expected, int64_t value)
    void dps_pause()
    void dps_yield()
    double dps_now()
    void dps_sleep(int32_t *bell, int32_t heard, uint32_t bits, double seconds)
    void dps_wake(int32_t *bell, uint32_t bits)
    int32_t atomic_load32 "__atomic_load_n"(const int32_t *word, int order)
    int32_t atomic_add32 "__atomic_add_fetch"(int32_t *word, int32_t value, int order)
    int SEQ_CST "__ATOMIC_SEQ_CST"

cdef enum:
    LINE = 16  # int64 words per line

cdef double YIELDS = 1e-3           # seconds

PORTABLE = bool(DPS_IS_PORTABLE)
LINE_BYTES = LINE * 8

READY = 0
STOPPED = 1
LATE = 2


cdef inline int64_t* _word(const Words* words, int word) noexcept nogil:
    return words.base + (2 + word) * LINE


cdef inline int _of_rank(const Words* words, int rank, int field) noexcept nogil:
    """Return the number of a rank's word."""
    return words.n_global + rank * words.n_fields + field


cdef inline uint32_t _bit(int word) noexcept nogil:
    return <uint32_t> 1 << ((<uint32_t> word * <uint32_t> 0x9E3779B1) >> 27)


cdef inline void _ring(const Words* words, int word) noexcept nogil:
    atomic_add32(<int32_t *> words.base, 1, SEQ_CST)
    if dps_load(words.base + LINE) > 0:
        dps_wake(<int32_t *> words.base, _bit(word))


cdef int64_t load(const Words* words, int word) noexcept nogil:
    return dps_load(_word(words, word))


cdef void store(const Words* words, int word, int64_t value) noexcept nogil:
    dps_store(_word(words, word), value)
    _ring(words, word)


cdef int64_t add(const Words* words, int word, int64_t value) noexcept nogil:
    cdef int64_t result = dps_add(_word(words, word), value)
    _ring(words, word)
    return result


cdef bint replace(
    const Words* words, int word, int64_t expected, int64_t value
) noexcept nogil:
    """Store a value if the word holds the expected one; True if it was stored."""
    cdef bint stored = dps_replace(_word(words, word), expected, value)
    if stored:
        _ring(words, word)
    return stored


cdef int64_t rank_load(const Words* words, int rank, int field) noexcept nogil:
    return load(words, _of_rank(words, rank, field))


cdef void rank_store(const Words* words, int rank, int field, int64_t value) noexcept nogil:
    store(words, _of_rank(words, rank, field), value)


cdef void rank_set(const Words* words, int rank, int field, int64_t value) noexcept nogil:
    """Store a rank's word that no thread waits for."""
    dps_store(_word(words, _of_rank(words, rank, field)), value)


cdef bint count_up(const Words* words, int word, int64_t goal) noexcept nogil:
    """Increment a word that no thread waits for; at the goal reset it and return True."""
    if dps_add(_word(words, word), 1) < goal:
        return False
    dps_store(_word(words, word), 0)
    return True


cdef int _lacking(
    const Words* words, int field, int word, int64_t value, int* first
) noexcept nogil:
    """Return the first word below the value, -1 if there is none.

    Ranks before `first` are not read: they had the value at an earlier look.
    """
    if field < 0:
        return word if load(words, word) < value else -1
    while first[0] < words.n_ranks:
        if rank_load(words, first[0], field) < value:
            return _of_rank(words, first[0], field)
        first[0] += 1
    return -1


cdef bint is_ready(const Words* words, int field, int word, int64_t value) noexcept nogil:
    cdef int first = 0
    return _lacking(words, field, word, value, &first) < 0


cdef int wait_for(
    const Words* words, int field, int word, int64_t value, double seconds
) noexcept nogil:
    """Wait for a field of every rank, or for a word if the field is -1; return READY and so on."""
    cdef int _look, lacking, first = 0
    cdef int32_t heard
    cdef double began, deadline, left, now, nap = 1e-6
    if _lacking(words, field, word, value, &first) < 0:
        return 0
    for _look in range(dps_looks if dps_load(words.base + LINE + 1) == 0 else DPS_FEWEST_LOOKS):
        dps_pause()
        if _lacking(words, field, word, value, &first) < 0:
            dps_looked(True)
            return 0
    dps_looked(False)
    began = now = dps_now()
    deadline = began + seconds
    while began + min(seconds, YIELDS) > now > dps_crowded and load(words, words.stop) == 0:
        if _lacking(words, field, word, value, &first) < 0:
            return 0
        dps_yield()
        now = dps_offered(now, dps_now())
    while True:
        dps_add(words.base + LINE, 1)
        heard = atomic_load32(<int32_t *> words.base, SEQ_CST)
        lacking = _lacking(words, field, word, value, &first)
        if lacking < 0:
            dps_add(words.base + LINE, -1)
            return 0
        left = deadline - dps_now()
        if load(words, words.stop) != 0 or left <= 0:
            dps_add(words.base + LINE, -1)
            return 2 if load(words, words.stop) == 0 else 1
        if DPS_FUTEX:
            nap = 0.05
        elif nap < 1e-3:
            nap *= 2
        dps_sleep(
            <int32_t *> words.base, heard, _bit(lacking) | _bit(words.stop),
            nap if nap < left else left,
        )
        dps_add(words.base + LINE, -1)


cdef class Header:
    """The atomic words of a window.

    `memory` is int64; it holds a bell, `n_global` words and `n_fields` words for
    each of `n_ranks` ranks, each on a line of 128 bytes. `stop` is the number of
    the word that ends every wait when it is not zero.
    """
    # The first two lines belong to the bell, its sleepers, and threads that want cores.
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
        self.words = Words(&memory[0], n_ranks, n_global, n_fields, stop)

    @property
    def n_ranks(self):
        return self.words.n_ranks

    @property
    def n_global(self):
        return self.words.n_global

    @property
    def n_fields(self):
        return self.words.n_fields

    @staticmethod
    def nbytes(int n_ranks, int n_global, int n_fields):
        return (2 + n_global + n_ranks * n_fields) * LINE * 8

    cdef int _check(self, int word) except -1:
        if not 0 <= word < self.words.n_global:
            raise IndexError(f"word {word} of {self.words.n_global}")
        return 0

    cdef int _check_rank(self, int rank, int field) except -1:
        if not 0 <= rank < self.words.n_ranks:
            raise IndexError(f"rank {rank} of {self.words.n_ranks}")
        if not 0 <= field < self.words.n_fields:
            raise IndexError(f"field {field} of {self.words.n_fields}")
        return 0

    def want_core(self):
        """Note that a thread without a core of its own takes part, so that others spin less."""
        dps_add(self.words.base + LINE + 1, 1)

    def load(self, int word):
        self._check(word)
        return load(&self.words, word)

    def store(self, int word, int64_t value):
        self._check(word)
        store(&self.words, word, value)

    def store_once(self, int word, int64_t value):
        """Set a word if it is zero; True if it was set."""
        self._check(word)
        cdef bint stored = dps_claim(_word(&self.words, word), value)
        _ring(&self.words, word)
        return stored

    def add(self, int word, int64_t value):
        """Add to a word; return the new value."""
        self._check(word)
        return add(&self.words, word, value)

    def rank_load(self, int rank, int field):
        self._check_rank(rank, field)
        return rank_load(&self.words, rank, field)

    def rank_store(self, int rank, int field, int64_t value):
        self._check_rank(rank, field)
        rank_store(&self.words, rank, field, value)

    def rank_add(self, int rank, int field, int64_t value):
        """Add to a rank's word without ringing; return the new value."""
        self._check_rank(rank, field)
        return dps_add(_word(&self.words, _of_rank(&self.words, rank, field)), value)

    def rank_claim(self, int rank, int field, int64_t value):
        """Set a rank's word if it is zero; True if it was set."""
        self._check_rank(rank, field)
        return bool(dps_claim(_word(&self.words, _of_rank(&self.words, rank, field)), value))

    def below(self, int field, int64_t value):
        """Return the ranks whose field is less than `value`."""
        self._check_rank(0, field)
        cdef int rank
        found = []
        for rank in range(self.words.n_ranks):
            if rank_load(&self.words, rank, field) < value:
                found.append(rank)
        return found

    def ready(self, int field, int64_t value):
        """True if the field of every rank is at least `value`."""
        self._check_rank(0, field)
        return bool(is_ready(&self.words, field, 0, value))

    def word_ready(self, int word, int64_t value):
        self._check(word)
        return bool(is_ready(&self.words, -1, word, value))

    def wait(self, int field, int64_t value, double seconds):
        """Wait until the field of every rank is at least `value`: READY, STOPPED or LATE."""
        self._check_rank(0, field)
        cdef int result
        with nogil:
            result = wait_for(&self.words, field, 0, value, seconds)
        return result

    def word_wait(self, int word, int64_t value, double seconds):
        """Wait until a word is at least `value`: READY, STOPPED or LATE."""
        self._check(word)
        cdef int result
        with nogil:
            result = wait_for(&self.words, -1, word, value, seconds)
        return result
