"""How writes of a part go on to its mirror, and how one that comes again is known.

Protocol. A mirror is a shard like the shard itself, in another process. Each write goes on to it
while the part is held, so that both have the same writes in the same order: it is sent, done here,
and answered once the mirror has answered. Either notes the last write of each caller by its number,
at an entry that the shard chooses. So a caller whose shard died before it answered asks the mirror
again, which knows what it has done. A mirror leads once it has taken over, and refuses what the
shard before still passes on.
Where the mirror cannot be asked, the part is `behind` before anything else happens: no write is
answered until the mirror has all of the part again, or is known to be gone.

What a crash of the shard's process leaves: its mirror has every write that was answered, whole, and
perhaps the one after, which its caller asks for again.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from dps._runtime.message cimport Answer, Caller, Request


cdef class LastWrites:
    """The last write of each caller, and how it ended.

    Attributes
    ----------
    n : int
        Entries that there are.
    """

    def __dealloc__(self):
        free(self.list)

    @property
    def noted(self):
        """All of them, as bytes."""
        return bytes((<char*> self.list)[:self.n * sizeof(LastWrite)])

    @noted.setter
    def noted(self, bytes notes):
        cdef const char* given = notes
        self.have(len(notes) // <Py_ssize_t> sizeof(LastWrite))
        memcpy(self.list, given, min(len(notes), self.n * <Py_ssize_t> sizeof(LastWrite)))

    cdef int have(self, Py_ssize_t n) except -1 nogil:
        """Have n entries at least."""
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
        """Whether a write that comes again was done; how that ended."""
        cdef Py_ssize_t i
        for i in range(self.n):
            if self.list[i].caller == request.caller and self.list[i].number == request.number:
                answer.status = self.list[i].status
                return True
        return False


cdef class MirrorLink:
    """A part's wire to its mirror; used while the part is held.

    Parameters
    ----------
    mirror : Caller
        The mirror has all that the part has now.
    number : int
        Of the part.
    mend : callable
        Called where the mirror cannot be asked: it gives the part another link, or none, or raises.
    """

    def __init__(self, Caller mirror, int64_t number, mend):
        self.mirror, self.number, self.mend = mirror, number, mend

    cdef int catch_up(self) except -1 with gil:
        self.mend()
        return 0

    cdef bint pass_on(
        self, const Request* request, const int64_t* keys, const char* values,
        Py_ssize_t nbytes_of_key, Py_ssize_t itemsize
    ) noexcept nogil:
        """Send a write to the mirror; whether it is on its way. An error is a matter of `mend`."""
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
        """Wait for the mirror's answer; whether it has done the same."""
        cdef bint same = False
        try:
            self.mirror.hear_status()
            same = self.mirror.answer.status == status and self.mirror.answer.nbytes == 0
            self.behind = not same
        finally:
            return same
