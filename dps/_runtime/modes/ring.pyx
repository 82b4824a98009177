"""Allreduce by a ring: every message goes to the right-hand neighbour.

The vector is cut into as many chunks as there are members, N. Chunk c begins at member c, and each
member adds its own part to what comes from the left, so that member c - 1 has the sum
``((g_c + g_c+1) + ...) + g_c-1``, divides it by the rows of all, and sends it round once more.
That is 2 (N - 1) messages of a chunk, whatever N is. All members hold the same bits; for N > 2 they
are others than those of the direct way, which sums in the order of members. As bfloat16, each sum
is rounded before it is sent, and the mean once; a member adds what rounding has left over of a
chunk to the same chunk in its next step.

Protocol. Each member has a window of its own, beside it. A message is put into the right
neighbour's window, in memory or by the thread there that serves this member: values and rows into
the place of that message, then the word RING, the message's number over the whole fit. The
neighbour waits for the word, and reads. Each of the 2 (N - 1) messages of a step has a place of its
own, so no rank need say that a place has been read: a member that puts message j of step k + 1 has
had, directly or through others, a message of step k + 1 or of the second round of k from its right
neighbour, which had read message j of step k before that. A crash before RING leaves the members
to the right waiting, as a barrier does, until the fit is stopped.
"""
from libc.stdint cimport int64_t, uint16_t
from libc.string cimport memcpy

import numpy as np

from dps._runtime.shared.activity cimport PUSH as PUSHING
from dps._runtime.modes.allreduce cimport AllReduceStep
from dps._runtime.channel.base cimport ErrorFeedback, ShardChannel
from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.channel.stream cimport StreamChannel
from dps._runtime.wire.message cimport BAD_GRADIENT, FULL, PUSH, RAN, STOPPED
from dps._runtime.shared.words cimport R_RING, S_VERSION, W_STOP, load, store


cdef class RingStep(AllReduceStep):
    """A rank's steps on its own copy, whose whole vectors go around a ring.

    place: the member that this rank is; -1: another rank of its host takes part for it.
    """

    cdef int place
    cdef int n_places
    cdef const int64_t* cuts            # (n_places + 1,)
    cdef MappedChannel own
    cdef ShardChannel right
    cdef ErrorFeedback feedback

    def __init__(self, rank, channels, held, total, version, activity, update, host, int place):
        AllReduceStep.__init__(self, rank, channels, held, total, version, activity, update, host)
        self.place, self.n_places = place, len(channels)
        cuts = np.arange(self.n_places + 1, dtype=np.int64) * self.size // self.n_places
        self.cuts = <const int64_t*> self.keep(cuts)
        self.feedback = ErrorFeedback(self.numbers.single, self.size)
        if place >= 0:
            self.own = <MappedChannel?> channels[place]
            self.right = channels[(place + 1) % self.n_places]

    cdef int _exchange_with_all(
        self, int64_t op, const char* given, int64_t rows, double rate, char* taken
    ) except -1 nogil:
        cdef int number
        if op != PUSH or self.n_places == 1:
            return AllReduceStep._exchange_with_all(self, op, given, rows, rate, taken)
        if load(&self.own.words, W_STOP) != 0:
            return STOPPED
        if not self.numbers.copy_checked(taken, given, self.size):
            return BAD_GRADIENT
        self._all_reduce(taken, rows)
        store(&self.own.store_words, S_VERSION, self.version + self.sequence)
        for number in range(self.n_places):  # it sends nothing else to the shards in this step
            if (<ShardChannel> self._channels[number]).far:
                (<StreamChannel> self._channels[number]).heartbeat()
        self.activity.spend(PUSHING, -1)
        return RAN

    cdef int _all_reduce(self, char* values, int64_t own_rows) except -1 nogil:
        """Compute the mean of the ranks' values."""
        cdef int64_t rows = own_rows
        cdef const char* message
        cdef int j, last = self.n_places - 1
        for j in range(last):
            self._put(j, self._chunk(-j), self._message(values, self._chunk(-j)), rows)
            rows = own_rows + self._await(j)
            self._add(values, self._chunk(-j - 1), self._came(j))
        self.numbers.divide(
            values + self._first(self._chunk(1)), <double> max(rows, 1),
            self._length(self._chunk(1)),
        )
        message = self._message(values, self._chunk(1))
        self._set(values, self._chunk(1), message)
        for j in range(last):
            self._put(last + j, self._chunk(1 - j), message, rows)
            self._await(last + j)
            message = self._came(last + j)
            self._set(values, self._chunk(-j), message)
        return 0

    cdef const char* _message(self, const char* values, int chunk) except NULL nogil:
        """Return a chunk of the values in the form of a message."""
        if self.coding == FULL:
            return values + self._first(chunk)
        return self.feedback.narrow(
            values, self.cuts[chunk], self._length(chunk), self.sequence == self.way.last
        )

    cdef void _add(self, char* values, int chunk, const char* message) noexcept nogil:
        cdef char* at = values + self._first(chunk)
        if self.coding == FULL:
            self.numbers.add(at, message, self._length(chunk))
        else:
            self.numbers.add_widened(at, <const uint16_t*> message, self._length(chunk))

    cdef void _set(self, char* values, int chunk, const char* message) noexcept nogil:
        cdef char* at = values + self._first(chunk)
        if self.coding != FULL:
            self.numbers.widen(at, <const uint16_t*> message, self._length(chunk))
        elif at != message:
            memcpy(at, message, self._length(chunk) * self.numbers.itemsize)

    cdef int _chunk(self, int shift) noexcept nogil:
        """Return the chunk `shift` places to the right of this member's own."""
        return (self.place + shift + self.n_places) % self.n_places

    cdef Py_ssize_t _first(self, int chunk) noexcept nogil:
        """Start of a chunk, in bytes."""
        return self.cuts[chunk] * self.numbers.itemsize

    cdef Py_ssize_t _length(self, int chunk) noexcept nogil:
        """Elements of a chunk."""
        return self.cuts[chunk + 1] - self.cuts[chunk]

    cdef int _put(self, int number, int chunk, const char* message, int64_t rows) except -1 nogil:
        cdef Py_ssize_t nbytes = self._length(chunk) * self.numbers.itemsize
        if self.coding != FULL:
            nbytes = self._length(chunk) * sizeof(uint16_t)
        self.activity.push((self.place + 1) % self.n_places, nbytes)
        return self.right.put(number, message, nbytes, rows, self._sequence(number))

    cdef int64_t _await(self, int number) except -1 nogil:
        """Wait for a message; return its rows."""
        self.own.wait(R_RING, 0, self._sequence(number))
        return self.own.ring.rows[number]

    cdef int64_t _sequence(self, int number) noexcept nogil:
        return self.sequence * 2 * (self.n_places - 1) + number + 1

    cdef const char* _came(self, int number) noexcept nogil:
        return self.own.ring.at + number * self.own.ring.stride
