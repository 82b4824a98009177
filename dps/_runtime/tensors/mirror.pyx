"""Forwarding of a part's writes to its mirror, and recognition of repeated writes.

Protocol. A mirror is a shard like the shard itself, in another process. Each write goes on to it
while the part is held, so that both have the same writes in the same order: it is sent, done here,
and answered once the mirror has answered. Either notes the last write of each caller by its number,
at an entry that the shard chooses. So a caller whose shard died before it answered asks the mirror
again, which knows what it has done. A mirror leads once it has taken over, and refuses what the
shard before still passes on.
A mirror that is new, or was cut off, gets the elements of the part in pieces. Each is sent while
the part is held, and writes between two of them go on to the mirror as always: what they change in
a piece that has not come yet is written over by it. Until all have come, the mirror is torn: how
writes end there says nothing, and it does not lead.
Where the mirror cannot be asked, the part is `behind` before anything else happens: no write is
answered until the mirror has all of the part again, or is known to be gone.

What a crash of the shard's process leaves: its mirror has every write that was answered, whole, and
perhaps the one after, which its caller asks for again.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from dps._kernels.checks cimport vector_of
from dps._runtime.wire.message cimport FILL, MOVED, RAN, Answer, Caller, Request

from dps.errors import FencedError, ServerLostError


cdef class LastWrites:
    """The last write of each caller, and how it ended.

    n: number of entries.
    """

    def __dealloc__(self):
        free(self.list)

    @property
    def noted(self):
        """Return all entries as bytes."""
        return bytes((<char*> self.list)[:self.n * sizeof(LastWrite)])

    @noted.setter
    def noted(self, bytes notes):
        cdef const char* given = notes
        self.have(len(notes) // <Py_ssize_t> sizeof(LastWrite))
        memcpy(self.list, given, min(len(notes), self.n * <Py_ssize_t> sizeof(LastWrite)))

    cdef int have(self, Py_ssize_t n) except -1 nogil:
        """Have at least n entries."""
        cdef LastWrite* made
        if n <= self.n:
            return 0
        made = <LastWrite*> realloc(self.list, n * sizeof(LastWrite))
        if made is NULL:
            with gil:
                raise MemoryError
        memset(made + self.n, 0, (n - self.n) * sizeof(LastWrite))
        self.list, self.n = made, n
        return 0

    cdef void note(self, const Request* request, int64_t status) noexcept nogil:
        """Note a write, if its caller has an entry."""
        if request.entry >= 0:
            self.list[request.entry].caller = request.caller
            self.list[request.entry].number = request.number
            self.list[request.entry].status = status

    cdef bint find(self, const Request* request, Answer* answer) noexcept nogil:
        """True if a repeated write was done before; the answer then says how it ended."""
        cdef Py_ssize_t i
        for i in range(self.n):
            if self.list[i].caller == request.caller and self.list[i].number == request.number:
                answer.status = self.list[i].status
                return True
        return False


cdef class MirrorLink:
    """A part's wire to its mirror; used while the part is held.

    mend: ``mend(written)`` is called if the mirror cannot be asked. It gives the part another link,
        or none, or raises. `written`: whether a write has been done that the mirror may lack.
    """

    def __init__(self, Caller mirror, int64_t number, mend, bint torn=False):
        self.mirror, self.number, self.mend, self.torn = mirror, number, mend, torn

    def fill(self, int64_t row, int64_t start, keys, values):
        """Send elements of the part, which is held: from a first one on, or the rows of keys."""
        cdef Request request
        cdef const void* chosen = NULL
        cdef const void* given = vector_of("values", values, values.dtype.name, values.size)
        memset(&request, 0, sizeof(Request))
        request.op, request.part, request.passed, request.entry = FILL, self.number, 1, -1
        request.rows, request.start, request.nbytes = row, start, values.nbytes
        request.n_keys = values.size
        if keys is not None:
            request.start, request.n_keys = -1, len(keys)
            chosen = vector_of("keys", keys, "int64", len(keys))
            request.nbytes += keys.nbytes
        with nogil:
            self.mirror.begin(&request, chosen, given)
            self.mirror.hear_status()
        if self.mirror.answer.nbytes:
            raise ServerLostError("a mirror could not take what its shard has")
        if self.mirror.answer.status == MOVED:
            raise FencedError("the mirror leads")
        if self.mirror.answer.status != RAN:
            raise ServerLostError(f"a mirror refused elements ({self.mirror.answer.status})")

    cdef int catch_up(self, bint written) except -1 with gil:
        """Copy the part to the mirror again; `written`: including the current write."""
        self.mend(bool(written))
        return 0

    cdef bint pass_on(
        self, const Request* request, const int64_t* keys, const char* values,
        Py_ssize_t nbytes_of_key, Py_ssize_t itemsize
    ) noexcept nogil:
        """Send a write to the mirror; True if it was sent. `mend` handles an error."""
        cdef Request passed = request[0]
        cdef bint by_keys = request.start < 0, sent = False
        passed.part, passed.passed, passed.back = self.number, 1, 0
        passed.nbytes = request.n_keys * (
            <Py_ssize_t> sizeof(int64_t) + nbytes_of_key if by_keys else itemsize
        )
        self.behind = True
        try:
            self.mirror.begin(&passed, keys if by_keys else NULL, values)
            sent = True
        finally:
            return sent

    cdef bint confirm(self, int status) noexcept nogil:
        """Wait for the mirror's answer; True if it has done the same."""
        cdef bint same = False
        try:
            self.mirror.hear_status()
            same = self.mirror.answer.nbytes == 0 and (
                self.mirror.answer.status == status or self.torn
            )
            self.behind = not same
        finally:
            return same
