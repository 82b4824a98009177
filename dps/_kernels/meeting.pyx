"""Means over ranks and broadcasts on mapped windows, without the interpreter.

Twin of `operations.mean` and `operations.broadcast` in dps/server, in the same order of writes and
with the same bits; their docstrings are the protocol. It must not know what the vectors mean.
"""
from libc.stdint cimport int64_t, uintptr_t

import numpy as np

from dps._kernels.activity cimport COMPUTE, PUSH
from dps._kernels.push cimport BAD_UPDATE, PUSHED, ExchangePush, Shard
from dps._kernels.window cimport rank_store

from dps._kernels.push import ENDINGS


cdef class Meeting(ExchangePush):
    """A rank's part in means and broadcasts, whose numbers follow each other as those of pushes do.

    What they make lies in ``params``, which with one shard may be the window's own ``total``;
    ``notes`` is that region of the first shard. Time up to a call is taken for computing.
    """

    def __init__(self, *args, double[:, :, ::1] notes):
        super().__init__(*args)
        self.notes = notes

    def mean(self, int64_t number, values, int64_t rows, notes):
        """Bring vectors together; how it ended and the sums of the notes."""
        cdef const char* given = self._vector(values)
        cdef double[::1] told = self._told(notes)
        cdef int status
        self.sequence = number - 1
        with nogil:
            status = self.bring(given, rows, &told[0], told.shape[0] - 1)
        return ENDINGS[status], np.asarray(told)[:len(notes)]

    def broadcast(self, int64_t number, values, notes):
        """Hand rank 0's vector and notes to all; how it ended and these notes."""
        cdef const char* given = self._vector(values) if self.rank == 0 else NULL
        cdef double[::1] told = self._told(notes)
        cdef int status
        self.sequence = number - 1
        with nogil:
            status = self.hand_out(given, &told[0], told.shape[0] - 1)
        return ENDINGS[status], np.asarray(told)[:len(notes)]

    cdef int bring(
        self, const char* given, int64_t rows, double* notes, Py_ssize_t n_notes
    ) except -1 nogil:
        """`mean` without the interpreter; the sums of the notes come to their place."""
        cdef int64_t parity = (self.sequence + 1) % 2
        cdef int rank, status
        cdef Py_ssize_t i
        for i in range(n_notes):
            self.notes[parity, self.rank, i] = notes[i]
        self.activity.spend(COMPUTE, -1)
        status = self.push(given, rows, 0)
        self.activity.spend(PUSH, self.n_shards - 1)
        for i in range(n_notes):
            notes[i] = self.notes[parity, 0, i]
            for rank in range(1, self.shards[0].words.n_ranks):
                notes[i] += self.notes[parity, rank, i]
        return status

    cdef int hand_out(
        self, const char* given, double* notes, Py_ssize_t n_notes
    ) except -1 nogil:
        """`broadcast` without the interpreter; rank 0's notes come to the place of the others'."""
        cdef int64_t parity = (self.sequence + 1) % 2
        cdef int status
        cdef Py_ssize_t i
        self.activity.spend(COMPUTE, -1)
        status = self._broadcast(given, notes, n_notes, parity)
        self.activity.spend(PUSH, self.n_shards - 1)
        for i in range(n_notes):
            notes[i] = self.notes[parity, 0, i]
        return status

    cdef void _stepped(self, Shard* shard, int64_t step) noexcept nogil:
        """No update, no version."""

    cdef void _finish(self, int number) noexcept nogil:
        self._take_in(&self.shards[number], self.shards[number].total, self.params)

    cdef int _broadcast(
        self, const char* given, const double* notes, Py_ssize_t n_notes, int64_t parity
    ) except -1 nogil:
        cdef int number
        cdef Shard* shard
        cdef Py_ssize_t i
        self.sequence += 1
        for number in range(self.n_shards):
            rank_store(
                &self.shards[number].words, self.rank, self.places.arrived, self.sequence
            )
        for number in range(self.n_shards):
            shard = &self.shards[number]
            if self.rank == 0:
                self.wait(number, self.places.arrived, 0, self.sequence)
                if not self._give_out(shard, given, shard.total):
                    return BAD_UPDATE
                if number == 0:
                    for i in range(n_notes):
                        self.notes[parity, 0, i] = notes[i]
            self._settle(number)
        return PUSHED

    cdef object _told(self, notes):
        """The notes of a meeting, and a place more: none of them has an address, too."""
        if len(notes) > self.notes.shape[2]:
            raise ValueError(f"there are {self.notes.shape[2]} notes at most, got {len(notes)}")
        return np.array([*notes, 0], np.float64)

    cdef const char* _vector(self, values) except NULL:
        dtype = "float32" if self.single else "float64"
        right = values.shape == (self.size,) and values.dtype == dtype
        if not (right and values.flags.c_contiguous and values.flags.aligned):
            raise ValueError(
                f"a vector is {self.size} contiguous, aligned {dtype}, got {values.shape} "
                f"{values.dtype}"
            )
        return <const char*> <uintptr_t> values.ctypes.data
