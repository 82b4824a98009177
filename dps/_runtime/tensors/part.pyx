"""Parts of named tensors and tables at a shard: how callers read and write them.

Owns the order of reads and writes of one part.

Protocol. Only the process of the shard writes, but for READS: a caller hands its values over,
whole, and a thread there writes them. So a caller that dies, at whatever point, leaves a write that
is whole or none.
Words of a part, in memory that callers of the same host map
    WRITES    twice the writes so far; odd while one is under way
    VERSION   pushes so far: what the optimizer counts as steps
    READS     reads so far, to which each reader adds, also one that has mapped the part
    CLOSED    1: the server has been closed

A writer holds the part's mutex, which is the process's own; it makes the rows that it needs, if
there is room for all of them, makes WRITES odd, writes, and makes it even. Values that are not
finite, or lie outside, are refused before that. A reader that has mapped the part looks at WRITES,
copies, and looks again: what it has copied is one state, between two writes, if WRITES was even and
has not changed. It tries some times, and then asks the shard as others do, where it waits for the
mutex: while a user's function has it, in ticks, until the server is closed or the time is over.
Rows of a table are made by the writer before WRITES is odd: a reader that does not find the row of
an id reads what it will hold at first, which is the same.

Where the shard has a mirror, each write goes on to it: see ``mirror.pyx``.

What a crash leaves: of a caller, nothing. Of the shard's process, memory without an owner; WRITES
may stay odd. Readers see that the file's lock is free, and that the part is lost.
"""
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy, memset

from dps._kernels.buffer cimport Buffer
from dps._kernels.checks cimport vector_of
from dps._kernels.prefetch cimport dps_prefetch
from dps._kernels.table cimport FREE, LEFT, TableRows, draw, find, make
from dps._kernels.typed_ops cimport typed_ops
from dps._runtime.wire.message cimport (
    Answer, APPLY, ASSIGN, BAD_GRADIENT, BAD_UPDATE, FILL, FULL_TABLE, MOVED, OUTSIDE, RAN, READ,
    Request, STOPPED
)
from dps._runtime.tensors.mirror cimport ENTRIES, LastWrites, MirrorLink
from dps._runtime.shared.words cimport (
    Header, S_CLOSED, S_READS, S_VERSION, S_WRITES, add, load
)

from dps._runtime.updates import bind
from dps.errors import ServerLostError, StalledError

#: Seconds between two checks of a part that is held.
cdef double TICK = 0.1

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <time.h>
    #include <unistd.h>
    #include "table.h"
    #include "waiting.h"
    static int dps_new_mutex(pthread_mutex_t *mutex) {
        pthread_mutexattr_t kind;
        int failed;
        pthread_mutexattr_init(&kind);
        /* A thread that would wait for itself gets an error. */
        pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
        failed = pthread_mutex_init(mutex, &kind);
        pthread_mutexattr_destroy(&kind);
        return failed;
    }
    /* Lock it within some seconds, or ETIMEDOUT; EDEADLK where this thread has it. */
    static int dps_hold(pthread_mutex_t *mutex, double seconds) {
        int failed = pthread_mutex_trylock(mutex);
        if (failed != EBUSY)
            return failed;
    #if defined(_POSIX_TIMEOUTS) && _POSIX_TIMEOUTS > 0
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        long nanoseconds = until.tv_nsec + (long) (seconds * 1e9);
        until.tv_sec += nanoseconds / 1000000000;
        until.tv_nsec = nanoseconds % 1000000000;
        return pthread_mutex_timedlock(mutex, &until);
    #else
        /* A lock says whether this thread has it, and a try does not: others say so in time. */
        double deadline = dps_now() + seconds;
        struct timespec little = {0, 100000};
        while (failed == EBUSY && dps_now() < deadline) {
            nanosleep(&little, NULL);
            failed = pthread_mutex_trylock(mutex);
        }
        return failed == EBUSY ? ETIMEDOUT : failed;
    #endif
    }
    #define dps_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    """
    int dps_new_mutex(pthread_mutex_t* mutex) nogil
    int EDEADLK
    int dps_hold(pthread_mutex_t* mutex, double seconds) nogil
    double dps_now() nogil
    int pthread_mutex_unlock(pthread_mutex_t* mutex) nogil
    int pthread_mutex_destroy(pthread_mutex_t* mutex) nogil
    void dps_fence() nogil
    void dps_pause() nogil
    int64_t dps_home(int64_t id, int64_t n) nogil

cdef enum:
    TRIES = 8  # number of copies that a write may interrupt
    PAUSES = 2000  # number of looks at a write in progress
    FEW = 4096  # elements that are copied in no time
    AT_ONCE = 256  # keys whose rows are prefetched


cdef class TensorPart:
    """A tensor's or table's part at a shard: it is read and written through this.

    As a context it is held. If `store` is mapped, and another process writes, only `peek` may be
    used.

    rate: learning rate of pushes.
    max_wait: seconds for which a function may hold the part while others wait.
    leads: whether callers ask it, else a shard whose mirror it belongs to.
    """

    def __cinit__(self, *args, **kwargs):
        if dps_new_mutex(&self.mutex):
            raise MemoryError("no mutex could be made")

    def __dealloc__(self):
        pthread_mutex_destroy(&self.mutex)

    def __init__(self, store, double rate=0.0, double max_wait=60.0, bint leads=True):
        spec = store.spec
        self.store = store
        self.words = (<Header?> store.words).words
        self.numbers = typed_ops(spec.dtype == "float32")
        self.size, self.width = spec.size, spec.key_width
        self.n_keys = spec.size // max(spec.key_width, 1)
        self.state_rows = spec.state_rows
        self.params = vector_of("params", store.params, spec.dtype, self.size)
        self.state = vector_of("state", store.state, spec.dtype, self.size * spec.state_rows)
        if store.table is not None:
            self.table = (<TableRows?> store.table).table
        if store.update is not None:
            self.update = bind(store.update, spec.dtype, self.size, store)
        self.rate = rate
        self.max_wait = max_wait
        self.leads, self.last = leads, LastWrites()

    cdef bint hold(self) except -1 nogil:
        """Wait until no other thread holds the part; False if the server has been closed."""
        cdef int failed = dps_hold(&self.mutex, TICK)
        cdef double began = dps_now()
        while failed:
            if failed == EDEADLK:
                with gil:
                    raise RuntimeError("a function that runs on a shard must not ask that shard")
            if load(&self.words, S_CLOSED):
                return False
            if dps_now() - began > self.max_wait:
                with gil:
                    raise StalledError(
                        f"a function has been at work on a part for {self.max_wait:g} s: it must "
                        "not ask the server; raise `timeout` if it takes longer"
                    )
            failed = dps_hold(&self.mutex, TICK)
        return True

    cdef void let_go(self) noexcept nogil:
        pthread_mutex_unlock(&self.mutex)

    def __enter__(self):
        """Hold the part: no other thread writes, and only mapped readers read."""
        cdef bint held
        with nogil:
            held = self.hold()
        if not held:
            raise ServerLostError("the server has been closed")
        return self

    def __exit__(self, *exception):
        self.let_go()

    def reach(self, MirrorLink link):
        """Forward writes from now on, or stop forwarding, while the part is held."""
        self.link = link

    def reaches(self, MirrorLink link):
        """True if it forwards writes."""
        return self.link is link

    @property
    def noted(self):
        """The last writes of callers as bytes; a mirror sets them."""
        return self.last.noted

    @noted.setter
    def noted(self, bytes notes):
        self.room = 0  # rows have been added, too
        self.last.noted = notes

    @property
    def n_noted(self):
        """The number of entries."""
        return self.last.n

    cdef bint fits(self, const Request* request, const int64_t* keys) noexcept nogil:
        """True if the part has all requested rows."""
        cdef Py_ssize_t i
        if request.start >= 0:
            return (
                self.table.n_rows == 0 and request.n_keys >= 0 and request.start <= self.size
                and request.n_keys <= self.size - request.start
            )
        for i in range(request.n_keys):
            if keys[i] < 0 or (self.table.n_rows == 0 and keys[i] >= self.n_keys):
                return False
        return True

    cdef int run(
        self, const Request* request, int64_t* keys, char* values, char* back, Answer* answer
    ) except -1 nogil:
        """Run a request; ``keys`` and ``values`` are overwritten."""
        cdef bint by_keys = request.start < 0
        cdef Py_ssize_t n = request.n_keys * (self.width if by_keys else 1)
        answer.nbytes = 0
        answer.status = RAN
        if request.entry >= ENTRIES or not self.fits(request, keys) or request.op == FILL and not (
            request.passed and 0 <= request.rows <= self.state_rows
        ):
            answer.status = OUTSIDE
            return 0
        if READ != request.op != FILL and not self.numbers.is_finite(values, n):
            answer.status = BAD_GRADIENT
            return 0
        if not self.hold():
            answer.status, answer.version = STOPPED, 0
            return 0
        try:
            self.serve(request, keys, values, back, answer)
        finally:
            self.let_go()
        return 0

    cdef int serve(
        self, const Request* request, int64_t* keys, char* values, char* back, Answer* answer
    ) except -1 nogil:
        """Run a request while the part is held."""
        if load(&self.words, S_CLOSED):
            answer.status = STOPPED
        elif self.leads == (request.passed != 0):
            answer.status = MOVED
        else:
            if request.op == FILL:
                answer.status = self.fill(request, keys, values)
            elif request.again and request.op != READ and self.last.find(request, answer):
                if self.link is not None and self.link.behind:  # it was not answered
                    self.link.catch_up(True)
            elif request.op != READ:
                answer.status = self.write_both(request, keys, values)
            if request.back and answer.status == RAN:
                self.copy(request, keys, back)
                answer.nbytes = self.numbers.itemsize * request.n_keys * (
                    self.width if request.start < 0 else 1
                )
                add(&self.words, S_READS, 1)
        answer.version = load(&self.words, S_WRITES) // 2
        return 0

    cdef int write_both(self, const Request* request, int64_t* keys, char* values) except -1 nogil:
        """Write here and in the mirror, if there is one, and note the caller's write."""
        cdef bint sent = False
        cdef int status
        if self.link is not None and self.link.behind:
            self.link.catch_up(False)
        self.last.have(request.entry + 1)
        if self.link is not None:
            sent = self.link.pass_on(
                request, keys, values, self.width * self.numbers.itemsize, self.numbers.itemsize
            )
        status = self.write(request, keys, values)
        self.last.note(request, status)
        if self.link is not None and not (sent and self.link.confirm(status)):
            self.link.catch_up(True)
        return status

    cdef int write(self, const Request* request, int64_t* keys, char* values) except -1 nogil:
        cdef Py_ssize_t i, row = self.width * self.numbers.itemsize
        cdef int64_t at, step = load(&self.words, S_VERSION) + 1
        cdef bint finite = True
        if request.start < 0 and self.table.n_rows:
            for i in range(request.n_keys):
                dps_prefetch(self.table.ids + dps_home(keys[i], self.table.n_homes))
            if not self.have_room(keys, request.n_keys):
                return FULL_TABLE
            for i in range(request.n_keys):
                at = make(&self.table, keys[i], step)
                if at < 0:
                    return FULL_TABLE
                dps_prefetch(self.params + at * row)
        if request.op == APPLY and request.weight != 1:
            self.numbers.divide(
                values, request.weight, request.n_keys * (self.width if request.start < 0 else 1)
            )
        add(&self.words, S_WRITES, 1)
        dps_fence()
        try:
            if request.op == APPLY:
                add(&self.words, S_VERSION, 1)
            if request.start >= 0:
                finite = self.change(request.op, NULL, values, request.n_keys, request.start, step)
            else:
                for i in range(request.n_keys):
                    at = keys[i]
                    if self.table.n_rows:
                        at = find(&self.table, at)
                    finite &= self.change(
                        request.op, NULL, values + i * row, self.width, at * self.width, step
                    )
        finally:
            dps_fence()
            add(&self.words, S_WRITES, 1)
        return RAN if finite else BAD_UPDATE

    cdef int fill(
        self, const Request* request, const int64_t* keys, const char* values
    ) except -1 nogil:
        """Copy elements from the shard that this mirrors."""
        cdef Py_ssize_t i, width = self.width * self.numbers.itemsize
        cdef int64_t at
        cdef char* row = self.params
        if request.rows:
            row = self.state + (request.rows - 1) * self.size * self.numbers.itemsize
        if request.start >= 0:
            memcpy(row + request.start * self.numbers.itemsize, values,
                   request.n_keys * self.numbers.itemsize)
            return RAN
        for i in range(request.n_keys):
            at = keys[i]
            if self.table.n_rows:
                at = make(&self.table, at, 0)
                if at < 0:
                    return FULL_TABLE
            memcpy(row + at * width, values + i * width, width)
        return RAN

    cdef int have_room(self, const int64_t* keys, Py_ssize_t n) except -1 nogil:
        """True if the table has room for rows of all new ids; otherwise none is created.

        Only the holder of the part creates rows, so free rows stay free.
        """
        cdef Py_ssize_t i, new = 0
        for i in range(n):
            new += find(&self.table, keys[i]) < 0
        if new > self.room:
            self.room = 0
            for i in range(self.table.n_rows):
                self.room += self.table.ids[i] == FREE or self.table.ids[i] == LEFT
        if new > self.room:
            with gil:  # an id may occur twice
                new = len({keys[i] for i in range(n) if find(&self.table, keys[i]) < 0})
        if new > self.room:
            return False
        self.room -= new
        return True

    cdef bint change(
        self, int64_t op, char* at, const char* values, Py_ssize_t n, Py_ssize_t first,
        int64_t step
    ) except -1 nogil:
        """Change n elements from `start` on; True if they are finite afterwards."""
        at = self.params + first * self.numbers.itemsize
        if op == APPLY:
            return self.update.apply(
                self.params, values, self.state, self.size, first, first + n, step, self.rate
            ) != 0
        if op == ASSIGN:
            memcpy(at, values, n * self.numbers.itemsize)
            return True
        self.numbers.add(at, values, n)
        return self.numbers.is_finite(at, n)

    cdef void copy(self, const Request* request, const int64_t* keys, char* out) noexcept nogil:
        cdef int64_t rows[AT_ONCE]
        cdef Py_ssize_t i, j, n, row = self.width * self.numbers.itemsize
        if request.start >= 0:
            memcpy(out, self.params + request.start * self.numbers.itemsize,
                   request.n_keys * self.numbers.itemsize)
            return
        for i from 0 <= i < request.n_keys by AT_ONCE:
            n = min(request.n_keys - i, <Py_ssize_t> AT_ONCE)
            if self.table.n_rows:
                for j in range(n):
                    dps_prefetch(self.table.ids + dps_home(keys[i + j], self.table.n_homes))
                for j in range(n):
                    rows[j] = find(&self.table, keys[i + j])
                    dps_prefetch(self.params + max(rows[j], 0) * row)
            else:
                for j in range(n):
                    rows[j] = keys[i + j]
                    dps_prefetch(self.params + rows[j] * row)
            for j in range(n):
                if rows[j] < 0:
                    draw(&self.table, keys[i + j], out + (i + j) * row)
                else:
                    memcpy(out + (i + j) * row, self.params + rows[j] * row, row)

    def peek(self, int64_t start, keys, out):
        """Read without the shard; None if it must be asked, else how the read ended.

        The result is a plain number, because looking up a member of an enum takes as long as the
        read.
        """
        cdef const int64_t[::1] picks = keys
        cdef const int64_t* wanted = &picks[0] if keys is not None and picks.shape[0] else NULL
        cdef char* into = <char*> <uintptr_t> out.ctypes.data
        cdef bint came
        cdef Request request
        request.start = start
        request.n_keys = picks.shape[0] if start < 0 else out.size
        if not self.fits(&request, wanted):
            return <int> OUTSIDE
        if not out.flags.c_contiguous or out.size != (
            request.n_keys * (self.width if start < 0 else 1)
        ):
            raise ValueError(f"no room for {request.n_keys} keys in {out.size} elements")
        if out.size <= FEW:  # releasing the interpreter takes longer than that
            came = self.look(&request, wanted, into)
        else:
            with nogil:
                came = self.look(&request, wanted, into)
        if load(&self.words, S_CLOSED):
            return <int> STOPPED
        if not came:
            return None
        add(&self.words, S_READS, 1)
        return <int> RAN

    cdef bint look(self, const Request* request, const int64_t* keys, char* out) noexcept nogil:
        """Copy a consistent state while others may write; False if there was no time for that."""
        cdef int64_t before
        cdef int tried = 0, waited = 0
        while tried < TRIES and waited < PAUSES:
            before = load(&self.words, S_WRITES)
            if before & 1:
                dps_pause()
                waited += 1
                continue
            self.copy(request, keys, out)
            dps_fence()
            if load(&self.words, S_WRITES) == before:
                return True
            tried += 1
        return False

    def do(self, int64_t op, int64_t start, keys, values, double weight, out):
        """Run a request of a caller in this process; return how it ended, and the writes so far."""
        return self._do(op, start, keys, values, weight, out, False)

    def put(self, int64_t start, keys, values):
        """Assign while the part is held as a context; return how it ended, and the writes so far.
        """
        return self._do(ASSIGN, start, keys, values, 1, None, True)

    cdef _do(
        self, int64_t op, int64_t start, keys, values, double weight, out, bint held
    ):
        cdef Buffer own_keys = Buffer(), own_values = Buffer()
        cdef Py_ssize_t n = len(keys) if start < 0 else (values if out is None else out).size
        cdef Py_ssize_t size = n * (self.width if start < 0 else 1)
        cdef const int64_t[::1] picks = keys
        cdef Request request
        cdef Answer answer
        cdef char* back = NULL
        dtype = "float32" if self.numbers.single else "float64"
        memset(&request, 0, sizeof(Request))
        request.op, request.start, request.n_keys = op, start, n
        request.back, request.weight, request.entry = out is not None, weight, -1
        own_keys.fit(n * 8)
        own_values.fit(size * self.numbers.itemsize)
        if start < 0 and n:
            memcpy(own_keys.at, &picks[0], n * 8)
        if values is not None:
            memcpy(own_values.at, vector_of("values", values, dtype, size),
                   size * self.numbers.itemsize)
        if out is not None:
            back = vector_of("out", out, dtype, size)
        with nogil:
            if held:
                answer.nbytes = 0
                self.serve(&request, <int64_t*> own_keys.at, own_values.at, back, &answer)
            else:
                self.run(&request, <int64_t*> own_keys.at, own_values.at, back, &answer)
        return answer.status, answer.version
