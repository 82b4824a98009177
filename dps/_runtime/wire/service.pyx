"""The shard's side of a remote rank or caller: a thread that executes its requests.

This module stores what arrives: a rank's gradient in its slot, a caller's keys and values as a
whole before a part is changed. A step is done by a channel of the same class as that of a rank that
has mapped the window; a read or write is done by the part.

A request and its answer, in turn, until the wire is closed. What a crash leaves: of a rank, before
its request is complete, half a gradient in the slot, which has not ARRIVED; later the step goes on
as if the rank lived, and its answer finds no reader. Of a caller: nothing, or a write that is
whole. Of the shard: a closed connection, on which the next or present request is an error at once.
"""
from libc.stdint cimport int64_t, uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from dps._kernels.buffer cimport Buffer
from dps._runtime.shared.activity cimport EPOCH, WIDTH
from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.wire.message cimport (
    ACCOUNT, Answer, BROADCAST, CALL, CHANGES, FILL, FULL, MEAN, PULL, PULL_KEYS, PUSH, PUSH_KEYS,
    RAISED, RAN, READ, Request, RING
)
from dps._runtime.tensors.part cimport TensorPart
from dps._runtime.wire.wire cimport Wire

from dps.errors import FencedError

#: Longer messages would overflow the count of bytes.
cdef int64_t MOST_KEYS = <int64_t> 1 << 40

#: Largest number of elements in a request, whose bytes can be counted for any dtype.
cdef int64_t MOST = <int64_t> 1 << 56

#: Ids are below this number.
cdef int64_t MOST_IDS = <int64_t> 1 << 62


cdef class Service:
    """Serves remote peers: a rank by its channel in the window, a caller by parts of tensors.

    ``respond(bytes)`` calls the function that a message describes, and does not raise. `entry` is
    the entry of a caller's last write.
    """

    cdef MappedChannel channel  # of a rank; None for a caller
    cdef list parts  # the parts of tensors that a caller may use
    cdef void** held  # the same as pointers
    cdef int64_t n_held
    cdef int64_t entry  # entry of the caller's last write
    cdef Wire wire
    cdef object respond
    cdef Request* request
    cdef Answer* answer
    cdef Request own_request  # the caller's request; a rank's is in its channel
    cdef Answer own_answer
    cdef bint working  # while a complete request is executed
    cdef char* slot
    cdef Py_ssize_t slot_size
    cdef Buffer values  # values for a part, and values to return
    cdef Buffer results
    cdef Buffer keys  # the keys that arrived last
    cdef Buffer sparse  # keys and values of an answer, side by side
    cdef Buffer known  # the rank's parameters, if it is sent their changes
    cdef bint knows

    def __init__(
        self, Wire wire, respond, MappedChannel channel=None, parts=(), int64_t entry=-1
    ):
        cdef int number
        cdef Py_ssize_t itemsize
        self.channel, self.wire, self.respond, self.entry = channel, wire, respond, entry
        self.keys, self.sparse, self.values, self.results = Buffer(), Buffer(), Buffer(), Buffer()
        self.known, self.knows = Buffer(), False
        self.request, self.answer = &self.own_request, &self.own_answer
        if channel is not None:
            self.request, self.answer = &channel.request, &channel.answer
            itemsize = channel.numbers.itemsize
            self.slot, self.slot_size = channel.own_slot(), channel.size * itemsize
        free(self.held)
        self.parts = list(parts)
        self.n_held = len(self.parts)
        self.held = <void**> calloc(max(self.n_held, 1), sizeof(void*))
        if self.held is NULL:
            raise MemoryError
        for number, part in enumerate(self.parts):
            self.held[number] = <void*> (<TensorPart?> part)

    def __dealloc__(self):
        free(self.held)

    def run(self, pickled):
        """Serve until the wire is closed.

        pickled: bytes of an exception that was raised during a request.
        """
        while True:
            self.working = False
            try:
                with nogil:
                    called = self._serve()
            except FencedError as error:  # the start of the next request is unknown
                self._send(RAISED, pickled(error))
                return
            except Exception as error:
                if not self.working:
                    raise
                self._send(RAISED, pickled(error))
                continue
            if not called:
                return
            self._send(RAN, self.respond(bytes(self.wire.receive_bytes(self.request.nbytes))))

    def _send(self, int64_t status, bytes payload):
        cdef const char* result = payload
        memset(self.answer, 0, sizeof(Answer))
        self.answer.status, self.answer.nbytes = status, len(payload)
        with nogil:
            self._reply(result)

    cdef bint _serve(self) except -1 nogil:
        """Answer requests without the interpreter; True for a call, False at the end."""
        cdef int64_t waited
        cdef int status
        while self.wire.receive(self.request, sizeof(Request)):
            if self.request.op == CALL:
                return True
            if READ <= self.request.op <= FILL:
                self._serve_part()
                continue
            if self.channel is None:
                self._refuse()
            if self.request.op == ACCOUNT:
                self._receive_account()
                continue
            if self.request.op == RING:
                self._receive_round()
                continue
            self._receive()
            waited = self.channel.activity.waited_so_far()
            self.channel.activity.rest()
            self.working = True
            status = self._step()
            self.working = False
            self.answer.waited = self.channel.activity.waited_so_far() - waited
            self.answer.status = status
            if status == RAN and self.request.op == PUSH_KEYS and self.channel.mean.n_parts:
                self._reply_by_keys()
            else:
                self._reply(self._coded() if status == RAN else NULL)
        return False

    cdef const char* _coded(self) except? NULL nogil:
        """Return the payload of an answer in the rank's coding.

        The first and the last answer of an epoch are exact, so that an epoch that resumes from a
        checkpoint is the same.
        """
        cdef const char* result = self.channel.payload.result
        cdef Py_ssize_t size = self.channel.size
        if self.request.op == PULL:  # to wherever the rank wants them
            self.knows = False
        if self.request.op != PUSH or self.request.coding != CHANGES:
            return result
        if self.answer.nbytes != self.slot_size:
            return result
        if not self.knows or self.request.last:
            self.knows = not self.request.last
            if self.knows:
                memcpy(self.known.fit(self.slot_size), result, self.slot_size)
            return result
        self.answer.nbytes = size * sizeof(uint16_t)
        self.results.fit(self.answer.nbytes)
        self.channel.numbers.narrow_change(
            <uint16_t*> self.results.at, result, self.known.at, size
        )
        return self.results.at

    cdef int _serve_part(self) except -1 nogil:
        """Read or write a part, once the whole request has arrived."""
        if not 0 <= self.request.part < self.n_held:
            self._refuse()
        return self._use_part(<TensorPart> self.held[self.request.part])

    cdef int _use_part(self, TensorPart part) except -1 nogil:
        cdef Request* request = self.request
        cdef int64_t n = request.n_keys, keyed = 0, size
        if not 0 <= n <= MOST // max(part.width, 1):
            self._refuse()
        size = n * part.numbers.itemsize
        if request.start < 0:
            size *= part.width
            keyed = n * <int64_t> sizeof(int64_t)
        if request.nbytes != keyed + (0 if request.op == READ else size):
            self._refuse()
        self._take(self.keys.fit(keyed), keyed)
        if request.op != READ:
            self._take(self.values.fit(size), size)
        if request.back:
            self.results.fit(size)
        if not request.passed:
            request.entry = self.entry
        self.working = True
        part.run(request, <int64_t*> self.keys.at, self.values.at, self.results.at, self.answer)
        self.working = False
        return self._reply(self.results.at)

    cdef int _take(self, void* place, Py_ssize_t nbytes) except -1 nogil:
        if nbytes and not self.wire.receive(place, nbytes):
            with gil:
                raise ConnectionError("the caller has gone")
        return 0

    cdef int _receive_account(self) except -1 nogil:
        """Store a rank's counters; counters before EPOCH are kept here."""
        cdef int64_t row[WIDTH]
        if self.channel.request.nbytes != sizeof(row):
            self._refuse()
        self.wire.receive(row, sizeof(row))
        memcpy(self.channel.activity._row + EPOCH, row + EPOCH, (WIDTH - EPOCH) * sizeof(int64_t))
        return self.channel.heartbeat()

    cdef int _receive_round(self) except -1 nogil:
        """Store a message of a ring; it gets no answer."""
        cdef Request* request = &self.channel.request
        cdef int64_t place = request.n_keys
        cdef int64_t stride = self.channel.ring.stride
        if not (0 <= place < self.channel.ring.places and 0 <= request.nbytes <= stride):
            self._refuse()
        self.wire.receive(self.channel.ring.at + place * stride, request.nbytes)
        return self.channel.has_come(<int> place, request.rows, request.sequence)

    cdef int _receive(self) except -1 nogil:
        """Store the payload of a request."""
        cdef Request* request = &self.channel.request
        cdef Py_ssize_t i
        cdef int64_t least = -MOST_IDS if self.channel.takes_ids() else 0
        cdef int64_t left = request.nbytes, n = request.n_keys
        cdef int64_t* keys
        if self.channel.slots.own < 0 and request.op not in (PULL, PULL_KEYS):
            self._refuse()  # it has no slot: another rank of its host sends for it
        if request.op == PULL_KEYS or request.op == PUSH_KEYS:
            if not self.channel.key_width:
                self._refuse()
            if n >= 0:
                left -= min(n, MOST_KEYS) * <int64_t> sizeof(int64_t)
                # Any number of ids is allowed; filling checks the room of a slot.
                if n > self.channel.n_keys and least == 0 or left < 0 or n > MOST_KEYS:
                    self._refuse()
                keys = <int64_t*> self.keys.fit(n * sizeof(int64_t))
                self.wire.receive(keys, n * sizeof(int64_t))
                for i in range(n):
                    if not least <= keys[i] < self.channel.n_keys:
                        self._refuse()
                self.channel.pick_all(keys, n)
            if request.op == PUSH_KEYS:
                left -= self.channel.picks.n * self.channel.key_bytes
            if left != 0:
                self._refuse()
            left = self.channel.picks.n * self.channel.key_bytes if request.op == PUSH_KEYS else 0
            self.wire.receive(self.channel.values.fit(left), left)
        elif request.op == PUSH and request.coding != FULL:
            if left != self.channel.size * <int64_t> sizeof(uint16_t):
                self._refuse()
            if not self.channel.takes(request.coding):
                self._refuse()
            self.channel.reserve(False, self.slot_size)
            self.wire.receive(self.values.fit(left), left)
            self.channel.numbers.widen(
                self.slot, <uint16_t*> self.values.at, self.channel.size
            )
        elif left == self.slot_size and request.op in (PUSH, MEAN, BROADCAST):
            self.channel.reserve(False, left)
            self.wire.receive(self.slot, left)
        elif left != 0 or request.op not in (PULL, BROADCAST):
            self._refuse()
        return 0

    cdef int _refuse(self) except -1 nogil:
        with gil:
            raise FencedError(
                f"a request is refused: kind {self.request.op}, with {self.request.n_keys} keys "
                f"and {self.request.nbytes} bytes"
            )

    cdef int _step(self) except -1 nogil:
        cdef int status
        self.channel.answer.nbytes = 0
        self.channel.payload.result = NULL
        status = self.channel.begin(NULL)
        if status == RAN:
            status = self.channel.finish(NULL)
        if status != RAN:
            self.channel.answer.nbytes = 0
        return status

    cdef int _reply_by_keys(self) except -1 nogil:
        """Send a sparse mean: all its keys, and then all values."""
        cdef Py_ssize_t each = self.channel.key_bytes, part, n = 0, count
        cdef char* values
        for part in range(self.channel.mean.n_parts):
            n += self.channel.mean.counts[part]
        self.answer.n_keys, self.answer.nbytes = n, n * (each + <Py_ssize_t> sizeof(int64_t))
        self.sparse.fit(self.answer.nbytes)
        values = self.sparse.at + n * sizeof(int64_t)
        n = 0
        for part in range(self.channel.mean.n_parts):
            count = self.channel.mean.counts[part]
            memcpy(
                self.sparse.at + n * sizeof(int64_t), self.channel.mean.keys[part],
                count * sizeof(int64_t),
            )
            memcpy(values + n * each, self.channel.mean.values[part], count * each)
            n += count
        return self._reply(self.sparse.at)

    cdef int _reply(self, const char* result) except -1 nogil:
        cdef const void* parts[2]
        cdef Py_ssize_t sizes[2]
        parts[0], sizes[0] = self.answer, sizeof(Answer)
        parts[1], sizes[1] = result, self.answer.nbytes
        self.wire.send(parts, sizes, 2)
        return 0
