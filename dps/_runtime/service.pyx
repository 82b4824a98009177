"""The shard's side of a rank that is far: a thread that runs the rank's own steps in the window.

Owns what crosses the wire and where it is put: a gradient into the rank's slot, an answer from
where it lies. What a step does is the end's, which is the same class as that of a rank that has
mapped the window. It must not know modes or Dask.

A request and its answer, in turn, until the rank closes the wire. What a crash leaves: of the rank,
before its request is complete, half a gradient in the slot, which has not ARRIVED; later the step
goes on as if the rank lived, and its answer finds nobody. Of the shard: a closed connection, on
which the rank's next or present request is an error at once.
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from dps._kernels.room cimport Room
from dps._runtime.activity cimport EPOCH, WIDTH
from dps._runtime.ends cimport (
    ACCOUNT, Answer, BROADCAST, CALL, MEAN, MappedEnd, PULL, PULL_KEYS, PUSH, PUSH_KEYS, RAISED,
    RAN, RING, Request
)
from dps._runtime.wire cimport Wire

from dps.errors import FencedError

#: What is longer would not be counted in bytes.
cdef int64_t MOST_KEYS = <int64_t> 1 << 40

#: Ids are below that.
cdef int64_t MOST_IDS = <int64_t> 1 << 62


cdef class Service:
    """Serves one rank.

    Parameters
    ----------
    end : MappedEnd
        The rank's, in the window.
    wire : Wire
    answer : callable
        ``answer(bytes)`` calls the function that a message of the rank means; what it returns is
        sent back. It does not raise.
    """

    def __init__(self, MappedEnd end, Wire wire, answer):
        cdef Py_ssize_t itemsize = end.numbers.itemsize
        self.end = end
        self.wire = wire
        self.answer = answer
        self.slot = end.slots + end.rank * end.slot_stride * itemsize
        self.slot_size = end.size * itemsize
        self.keys, self.sparse = Room(), Room()

    def run(self, pickled):
        """Serve until the rank closes the wire.

        Parameters
        ----------
        pickled : callable
            The bytes of an exception that a step has raised.
        """
        while True:
            self.stepping = False
            try:
                with nogil:
                    called = self._serve()
            except FencedError as error:  # nobody knows where the next request would begin
                self._send(RAISED, pickled(error))
                return
            except Exception as error:
                if not self.stepping:
                    raise
                self._send(RAISED, pickled(error))
                continue
            if not called:
                return
            self._send(RAN, self.answer(bytes(self.wire.receive_bytes(self.end.request.nbytes))))

    def _send(self, int64_t status, bytes payload):
        memset(&self.end.answer, 0, sizeof(Answer))
        self.end.answer.nbytes = len(payload)
        self.end.result = <const char*> payload
        with nogil:
            self._reply(<int> status)

    cdef bint _serve(self) except -1 nogil:
        """Answer what needs no interpreter; whether a call has come, else the rank has gone."""
        cdef int64_t waited
        cdef int status
        while self.wire.receive(&self.end.request, sizeof(Request)):
            if self.end.request.op == CALL:
                return True
            if self.end.request.op == ACCOUNT:
                self._receive_account()
                continue
            if self.end.request.op == RING:
                self._receive_round()
                continue
            self._receive()
            waited = self.end.activity.waited_so_far()
            self.end.activity.rest()
            self.stepping = True
            status = self._step()
            self.stepping = False
            self.end.answer.waited = self.end.activity.waited_so_far() - waited
            self._reply(status)
        return False

    cdef int _receive_account(self) except -1 nogil:
        """Take in what the rank says of itself; what comes before EPOCH is counted here."""
        cdef int64_t row[WIDTH]
        if self.end.request.nbytes != sizeof(row):
            self._refuse()
        self.wire.receive(row, sizeof(row))
        memcpy(self.end.activity._row + EPOCH, row + EPOCH, (WIDTH - EPOCH) * sizeof(int64_t))
        return self.end.say()

    cdef int _receive_round(self) except -1 nogil:
        """Put a message of a ring to its place; it gets no answer."""
        cdef Request* request = &self.end.request
        cdef int64_t place = request.n_keys
        if not (0 <= place < self.end.ring_places and 0 <= request.nbytes <= self.end.ring_stride):
            self._refuse()
        self.wire.receive(self.end.ring + place * self.end.ring_stride, request.nbytes)
        return self.end.has_come(<int> place, request.rows, request.sequence)

    cdef int _receive(self) except -1 nogil:
        """Put what follows a request to its place."""
        cdef Request* request = &self.end.request
        cdef Py_ssize_t i
        cdef int64_t least = -MOST_IDS if self.end.table.n_rows else 0
        cdef int64_t left = request.nbytes, n = request.n_keys
        cdef int64_t* keys
        if request.op == PULL_KEYS or request.op == PUSH_KEYS:
            if not self.end.key_width:
                self._refuse()
            if n >= 0:
                left -= min(n, MOST_KEYS) * <int64_t> sizeof(int64_t)
                # Of ids there may be any number; what a slot takes is looked at when it is filled.
                if n > self.end.n_keys and least == 0 or left < 0 or n > MOST_KEYS:
                    self._refuse()
                keys = <int64_t*> self.keys.fit(n * sizeof(int64_t))
                self.wire.receive(keys, n * sizeof(int64_t))
                for i in range(n):
                    if not least <= keys[i] < self.end.n_keys:
                        self._refuse()
                self.end.pick_all(keys, n)
            if left != (self.end.picks.n * self.end.key_bytes if request.op == PUSH_KEYS else 0):
                self._refuse()
            self.wire.receive(self.end.values.fit(left), left)
        elif left == self.slot_size and request.op in (PUSH, MEAN, BROADCAST):
            self.end.reserve(False, left)
            self.wire.receive(self.slot, left)
        elif left != 0 or request.op not in (PULL, BROADCAST):
            self._refuse()
        return 0

    cdef int _refuse(self) except -1 nogil:
        with gil:
            raise FencedError(
                f"a request is refused: kind {self.end.request.op}, with "
                f"{self.end.request.n_keys} keys and {self.end.request.nbytes} bytes"
            )

    cdef int _step(self) except -1 nogil:
        cdef int status
        self.end.answer.nbytes = 0
        self.end.result = NULL
        status = self.end.begin(NULL)
        if status == RAN:
            status = self.end.finish(NULL)
        if status != RAN:
            self.end.answer.nbytes = 0
        return status

    cdef int _reply(self, int status) except -1 nogil:
        cdef const void* parts[2]
        cdef Py_ssize_t sizes[2]
        cdef Answer* answer = &self.end.answer
        cdef Py_ssize_t each = self.end.key_bytes, part, n = 0, count
        cdef char* values
        answer.status = status
        if status == RAN and self.end.request.op == PUSH_KEYS and self.end.mean.n_parts:
            for part in range(self.end.mean.n_parts):
                n += self.end.mean.counts[part]
            answer.n_keys, answer.nbytes = n, n * (each + <Py_ssize_t> sizeof(int64_t))
            self.end.result = self.sparse.fit(answer.nbytes)
            values = self.sparse.at + n * sizeof(int64_t)
            n = 0
            for part in range(self.end.mean.n_parts):
                count = self.end.mean.counts[part]
                memcpy(
                    self.sparse.at + n * sizeof(int64_t), self.end.mean.keys[part],
                    count * sizeof(int64_t),
                )
                memcpy(values + n * each, self.end.mean.values[part], count * each)
                n += count
        parts[0], sizes[0] = answer, sizeof(Answer)
        parts[1], sizes[1] = self.end.result, answer.nbytes
        self.wire.send(parts, sizes, 2)
        return 0
