"""Sums of a host's ranks in their own window, before one of them sends the sum."""
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memmove

from dps._runtime.shared.activity cimport Activity
from dps._runtime.channel.base cimport ShardChannel
from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.wire.message cimport BROADCAST, MEAN, NOTES, PUSH_KEYS, RAN, STOPPED
from dps._runtime.shared.words cimport W_ANSWERED, W_STOP, load, store


cdef class HostReducer(MappedChannel):
    """A rank's channel to the window of its host, in which ranks sum before one of them sends.

    The window is as long as the whole vector; the ranks in it are numbered from 0, which leads.
    Protocol of a step. Each rank fills its slot and takes part in an exchange (see above) whose
    sum is not divided. The leader then asks the shards, writes what comes of it into the store's
    PARAMS, notes and status into REDUCTIONS, and then ANSWERED; the others wait for that. In a
    broadcast ranks have nothing to sum: they arrive, which says that they have read what stood
    there before. By keys the leader has the sums in TOTAL_KEYS and TOTAL, where it writes the means
    that come back, if any do; each rank reads the parameters at its own keys by itself.
    No rank arrives at step k + 1 before it has read the answer of step k, and only then is it
    written over. A leader that dies leaves the others waiting until the fit is stopped.
    """

    def __init__(self, window, int rank, first, slow_wait, double tick, Activity activity):
        MappedChannel.__init__(self, window, rank, -1, first, slow_wait, tick, activity)
        self.leads = rank == 0
        self.answered = self.keep(window.reductions)
        self.answer_stride = window.reductions.strides[0]
        if self.key_width:
            self.mean.n_parts = 1
            self.mean.keys[0], self.mean.values[0] = self.key_slots.total_keys, self.total

    cdef double divisor(self) noexcept nogil:
        return 1

    cdef int sum_up(
        self, int64_t op, const char* given, int64_t rows, const double* notes, int64_t sequence
    ) except -1 nogil:
        """Sum the vectors of the host's ranks into TOTAL, with `rows` and the answer's notes.

        By keys `picks` selects, and the leader has the sums in `mean`.
        """
        cdef int i, status
        self.request.op = op if op == BROADCAST or op == PUSH_KEYS else MEAN
        self.request.sequence = sequence
        self.request.rows = rows
        for i in range(NOTES):
            self.request.notes[i] = notes[i]
        if load(&self.words, W_STOP) != 0:
            return STOPPED
        status = self.begin(given)
        if status != RAN:
            return status
        if op == BROADCAST:
            if self.leads:
                self.await_arrivals()
            return RAN
        if op == PUSH_KEYS:
            return self._sum_keys()
        status = self.finish(NULL)
        if self.leads:
            self.sum_rows()
        return status

    cdef int _sum_keys(self) except -1 nogil:
        cdef Py_ssize_t each = self.key_bytes, n, first, count
        cdef int64_t* keys = self.key_slots.total_keys
        cdef int rank
        self.await_arrivals()
        self.sum_rows()
        n = self._merge(self.slots.rows, self.slots.n)
        self.key_slots.lay_out(self.slice.place, self.slice.start, n, self.total)
        self.done()
        if self.leads:
            n = 0
            for rank in range(self.n_ranks):  # side by side: no other rank reads them any more
                first = min(self.n_keys, rank * self.key_slots.slice_keys)
                count = self.key_slots.total_counts[rank]
                memmove(keys + n, keys + first, count * sizeof(int64_t))
                memmove(self.total + n * each, self.total + first * each, count * each)
                n += count
            self.mean.counts[0] = n
        return RAN

    cdef void take_means(self, int number, ShardChannel channel) noexcept nogil:
        """Append the means of a shard's answer to those of earlier shards."""
        cdef Py_ssize_t each = self.key_bytes, part, count
        cdef Py_ssize_t n = self.key_slots.total_counts[0] if number else 0
        cdef int64_t* keys = self.key_slots.total_keys
        for part in range(channel.mean.n_parts):
            count = channel.mean.counts[part]
            memcpy(keys + n, channel.mean.keys[part], count * sizeof(int64_t))
            memcpy(self.total + n * each, channel.mean.values[part], count * each)
            channel._globalise(keys + n, count)
            n += count
        self.key_slots.total_counts[0] = n

    cdef int publish(self, int status, const double* notes) noexcept nogil:
        """Publish the leader's answer."""
        cdef double* answer = <double*> (
            self.answered + (self.request.sequence % 2) * self.answer_stride
        )
        memcpy(answer, notes, NOTES * sizeof(double))
        answer[NOTES] = status
        store(&self.words, W_ANSWERED, self.request.sequence)
        return status

    cdef int await_answer(self, double* notes) except -1 nogil:
        """Wait for the leader's answer and return its notes."""
        cdef double* answer = <double*> (
            self.answered + (self.request.sequence % 2) * self.answer_stride
        )
        self.wait(-1, W_ANSWERED, self.request.sequence)
        memcpy(notes, answer, NOTES * sizeof(double))
        # The leader reports the error.
        return RAN if <int> answer[NOTES] == RAN else STOPPED
