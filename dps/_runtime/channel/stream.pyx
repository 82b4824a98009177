"""A rank's channel over a wire: its messages, and its side of their order.

Requests and answers alternate. In between the rank may send its account, or a message of a ring,
which have no answer.
"""
from libc.stdint cimport int64_t, uint16_t

import numpy as np

from dps._kernels.buffer cimport Buffer
from dps._runtime.shared.activity cimport WIDTH, Activity
from dps._runtime.channel.base cimport ErrorFeedback, ShardChannel
from dps._runtime.wire.message cimport (
    ACCOUNT, Answer, BROADCAST, CALL, CHANGES, FULL, MEAN, PULL_KEYS, PUSH, PUSH_KEYS, RAISED, RAN,
    Request, RING
)
from dps._runtime.wire.wire cimport PARTS, Wire

cdef extern from "waiting.h" nogil:
    int64_t dps_nanoseconds()

#: Nanoseconds between two accounts of a remote rank.
cdef int64_t ACCOUNT_EVERY = 250000000


cdef class StreamChannel(ShardChannel):
    """A channel over a wire; a `Service` at its other side has a channel in the shard's window.

    dtype, size, n_ranks, first, key_width: as of a `ShardChannel`.
    raised: makes the exception of a pickle.
    activity: its row of that shard is sent there, four times a second.
    """

    def __init__(
        self, dtype, Py_ssize_t size, int n_ranks, Py_ssize_t first, Py_ssize_t key_width,
        Wire wire, raised, int shard, Activity activity,
    ):
        ShardChannel.__init__(self, dtype, size, n_ranks, first, key_width)
        self.far = True
        self.shard, self.activity = shard, activity
        self.wire = wire
        self.raised = raised
        self.feedback = ErrorFeedback(self.numbers.single, size)
        if key_width:
            self.came_keys = Buffer()
            parts = np.zeros(3, np.int64)
            self.mean.keys = <const int64_t**> self.keep(parts)
            self.mean.values = <const char**> (self.mean.keys + 1)
            self.mean.counts = <int64_t*> (self.mean.values + 1)

    def call(self, bytes message):
        """Call a function at the shard, and return its pickled answer."""
        cdef const void* parts[2]
        cdef Py_ssize_t sizes[2]
        if self.pending:  # an error has left it pending
            raise self.wire.lost("an error has left it inside a step")
        self.pending = True
        self.request.op = CALL
        self.request.nbytes = len(message)
        parts[0], sizes[0] = &self.request, sizeof(Request)
        parts[1], sizes[1] = <const char*> message, len(message)
        with nogil:
            self.wire.send(parts, sizes, 2)
            self.receive(NULL)
        answer = self.wire.receive_bytes(self.answer.nbytes)
        self.pending = False
        return answer

    cdef int begin(self, const char* given) except -1 nogil:
        return self.send(given)

    cdef int finish(self, char* taken) except -1 nogil:
        return self.receive(taken)

    cdef int send(self, const char* given) except -1 nogil:
        cdef const void* parts[PARTS]
        cdef Py_ssize_t sizes[PARTS]
        cdef Py_ssize_t itemsize = self.numbers.itemsize
        cdef int64_t op = self.request.op
        cdef Request account
        cdef int n = 0
        if dps_nanoseconds() > self.accounted + ACCOUNT_EVERY:
            n = self._account(&account, parts, sizes)
        parts[n], sizes[n] = &self.request, sizeof(Request)
        n += 1
        self.request.nbytes = 0
        if op == PUSH or op == MEAN or (op == BROADCAST and given is not NULL):
            self.request.nbytes = self.size * itemsize
            parts[n] = given + self.first * itemsize
            if op == PUSH and self.request.coding != FULL:
                self.request.nbytes = self.size * sizeof(uint16_t)
                parts[n] = self.feedback.narrow(
                    given + self.first * itemsize, 0, self.size, self.request.last
                )
            sizes[n] = self.request.nbytes
            n += 1
        elif op == PULL_KEYS or op == PUSH_KEYS:
            if self.request.n_keys >= 0:
                parts[n], sizes[n] = self.picks.keys, self.picks.n * sizeof(int64_t)
                self.request.nbytes += sizes[n]
                n += 1
            if op == PUSH_KEYS:
                parts[n], sizes[n] = given, self.picks.n * self.key_bytes
                if self.picks.at is not NULL:
                    parts[n] = self.values.fit(sizes[n])
                    self.numbers.pick(
                        self.values.at, given, self.picks.at, self.picks.n, self.key_width
                    )
                self.request.nbytes += sizes[n]
                n += 1
        self.pending = True
        self.wire.send(parts, sizes, n)
        return RAN

    cdef int put(
        self, int place, const char* values, Py_ssize_t nbytes, int64_t rows, int64_t sequence
    ) except -1 nogil:
        cdef const void* parts[2]
        cdef Py_ssize_t sizes[2]
        cdef Request request
        request.op, request.nbytes = RING, nbytes
        request.sequence, request.rows, request.n_keys = sequence, rows, place
        parts[0], sizes[0] = &request, sizeof(Request)
        parts[1], sizes[1] = values, request.nbytes
        return self._send_whole(parts, sizes)

    cdef int _send_whole(self, const void** parts, const Py_ssize_t* sizes) except -1 nogil:
        """Send a message without an answer; checks during the wait must not send inside it."""
        cdef bint pending = self.pending
        self.pending = True
        self.wire.send(parts, sizes, 2)
        self.wire.flush()
        self.pending = pending
        return RAN

    cdef int _account(self, Request* request, const void** parts, Py_ssize_t* sizes) noexcept nogil:
        """Put the rank's account in front of a message; return the number of parts."""
        self.accounted = dps_nanoseconds()
        request.op = ACCOUNT
        request.nbytes = WIDTH * sizeof(int64_t)
        parts[0], sizes[0] = request, sizeof(Request)
        parts[1], sizes[1] = self.activity._rows[self.shard], request.nbytes
        return 2

    cdef int heartbeat(self) except -1 nogil:
        """Send the rank's account if it is due."""
        cdef const void* parts[2]
        cdef Py_ssize_t sizes[2]
        cdef Request request
        # Not inside a message. While an answer is awaited, the thread that serves this rank reports
        # that it waits.
        if not self.pending and dps_nanoseconds() > self.accounted + ACCOUNT_EVERY:
            self._account(&request, parts, sizes)
            self._send_whole(parts, sizes)
        return 0

    def account(self):
        """Send the rank's account."""
        cdef const void* parts[2]
        cdef Py_ssize_t sizes[2]
        cdef Request request
        with nogil:
            self._account(&request, parts, sizes)
            self._send_whole(parts, sizes)

    cdef int receive(self, char* taken) except -1 nogil:
        cdef bint got = self.wire.receive(&self.answer, sizeof(Answer))
        if not got:
            with gil:
                raise self.wire.lost("the shard has closed the connection")
        if self.answer.status == RAISED:
            with gil:
                raise self.raised(self.wire.receive_bytes(self.answer.nbytes))
        if self.request.op == CALL:  # its answer is still to be read
            return <int> self.answer.status
        if self.answer.status == RAN:
            self._payload(taken)
        self.pending = False
        return <int> self.answer.status

    cdef int _payload(self, char* taken) except -1 nogil:
        """Store the payload of an answer."""
        cdef Py_ssize_t itemsize = self.numbers.itemsize, nbytes
        cdef int64_t n = self.answer.n_keys
        if self.request.op == PULL_KEYS:
            nbytes = self.picks.n * self.key_bytes
            self._expect(nbytes)
            if self.picks.at is NULL:
                self.wire.receive(taken, nbytes)
            else:
                self.wire.receive(self.values.fit(nbytes), nbytes)
                self.numbers.scatter(
                    taken, self.values.at, self.picks.at, self.picks.n, self.key_width
                )
        elif self.request.op == PUSH_KEYS:
            if not 0 <= n <= self.n_keys:
                n = self.n_keys
            nbytes = n * self.key_bytes
            self._expect(nbytes + n * <Py_ssize_t> sizeof(int64_t))
            self.mean.keys[0] = <int64_t*> self.came_keys.fit(n * sizeof(int64_t))
            self.mean.values[0] = self.values.fit(nbytes)
            self.wire.receive(self.came_keys.at, n * sizeof(int64_t))
            self.wire.receive(self.values.at, nbytes)
            self.mean.n_parts = 1 if n else 0
            self.mean.counts[0] = n
        elif self._is_narrow():
            nbytes = self.size * sizeof(uint16_t)
            self._expect(nbytes)
            self.wire.receive(self.values.fit(nbytes), nbytes)
            if self.request.coding == CHANGES:
                self.numbers.add_widened(
                    taken + self.first * itemsize, <uint16_t*> self.values.at, self.size
                )
            else:
                self.numbers.widen(
                    taken + self.first * itemsize, <uint16_t*> self.values.at, self.size
                )
        else:
            self._expect(self.size * itemsize)
            self.wire.receive(taken + self.first * itemsize, self.size * itemsize)
        return 0

    cdef bint _is_narrow(self) noexcept nogil:
        """True if bfloat16 values follow; the first parameters for this rank come whole."""
        if self.request.op != PUSH or self.request.coding == FULL:
            return False
        return (
            self.request.coding != CHANGES
            or self.answer.nbytes != self.size * self.numbers.itemsize
        )

    cdef int _expect(self, Py_ssize_t nbytes) except -1 nogil:
        if self.answer.nbytes != nbytes:
            with gil:
                raise self.wire.lost(
                    f"an answer of {nbytes} bytes was expected, got {self.answer.nbytes}"
                )
        return 0
