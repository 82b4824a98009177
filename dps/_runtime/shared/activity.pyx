"""A rank's account of its work: counters in windows, and the clock that fills them.

Owns the words of a rank's row in a window and how time is shared out between them.

A rank has a row in the window of each shard, on lines of its own. Who writes a word is said below;
each has one writer at a time, and a reader may see one word newer than another.

Written where the window is mapped, or by the shard on behalf of a rank that is far:
    PUSHES      gradients received from the rank
    BYTES       their bytes, with keys
    APPLY       nanoseconds spent on the shard's memory for the rank, without waiting
Written by the rank, which tells the shard now and then where it is far:
    EPOCH       the one at work, from 1
    STEPS       gradients handed over that had rows behind them
    ROWS        rows seen
    EPOCH_ROWS  rows seen in this epoch
    LOSS        the bits of a double: the sum of losses of this epoch so far
    LOAD, COMPUTE, PULL, PUSH, WAIT
                nanoseconds; each goes to one of these
    STALE_SUM, STALE_MAX, and from STALENESS on BUCKETS words
                of the staleness of its pushes to this shard: 0, 1, 2-3, 4-7, ...
    LEAD_MAX    steps that it was ahead of the slowest rank when it read from this shard, at most,
                where ranks count them
All but the last four and those of the shard are in the first shard's row alone.

The clock is a stop watch: ``lap(phase)`` gives all time since the last lap to a phase. What is
waited meanwhile goes to WAIT and not to the phase, because ``waited`` moves the last lap on.

Where a step takes a microsecond, reading the clock four times would take a tenth of it. So after a
short step, in native loops, laps are skipped for a while (waits are not);
then all time since goes to the phases as that step's did.
"""
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

import numpy as np

cdef extern from "waiting.h" nogil:
    void dps_set(int64_t *word, int64_t value)
    void dps_bump(int64_t *word, int64_t value)
    int64_t dps_nanoseconds()


cdef enum:
    SHORT = 20000  # work in nanoseconds above which every step is timed
    MOST_SKIPPED = 64           # steps


cdef class Activity:
    """A rank's account: its row in the window of each shard, and a stop watch.

    `rows` are (WIDTH,) int64, one per shard; the first also has the words that all shards
    share. `timed` is false where only events are counted and no clock is read.
    """

    def __init__(self, rows, bint timed=True):
        cdef int number
        free(self._rows)  # of an earlier call
        self._rows = <int64_t**> malloc(max(1, len(rows)) * sizeof(int64_t*))
        if self._rows is NULL:
            raise MemoryError
        self.rows = []
        for number, row in enumerate(rows):
            if row.dtype != np.int64 or row.shape != (WIDTH,) or not row.flags.c_contiguous:
                raise ValueError(f"a row is {WIDTH} contiguous int64, got {row.shape} {row.dtype}")
            self.rows.append(row)
            self._rows[number] = <int64_t*> <uintptr_t> row.ctypes.data
        if not self.rows:
            raise ValueError("an account needs the row of a shard")
        self._row = self._rows[0]
        self._n = len(self.rows)
        self.timed = timed
        self._mark = dps_nanoseconds()

    def __dealloc__(self):
        free(self._rows)

    cdef void spend(self, int phase, int shard) noexcept nogil:
        """Add the time since the last lap to a phase, and to the shard's APPLY unless it is -1."""
        cdef int64_t now
        if not self.timed or self._skip:
            return
        now = dps_nanoseconds()
        self._part[phase - LOAD] += now - self._mark
        dps_bump(self._row + phase, now - self._mark)
        if shard >= 0:
            dps_bump(self._rows[shard] + APPLY, now - self._mark)
        self._mark = now

    cdef int64_t wait_begins(self) noexcept nogil:
        return dps_nanoseconds() if self.timed else 0

    cdef int64_t waited_so_far(self) noexcept nogil:
        return self._row[WAIT]

    cdef void wait_ends(self, int64_t began, int64_t known) noexcept nogil:
        """End a wait that began at ``began``, when ``known`` had been waited in all."""
        cdef int64_t waited
        if self.timed:
            # Waits in the interpreter have been added already.
            waited = dps_nanoseconds() - began - (self._row[WAIT] - known)
            dps_bump(self._row + WAIT, waited)
            self._mark += waited

    cdef void waited_afar(self, int64_t nanoseconds) noexcept nogil:
        """Add a remote shard's waiting time while this rank waited for its answer."""
        if self.timed and nanoseconds > 0:
            nanoseconds = min(nanoseconds, dps_nanoseconds() - self._mark)
            dps_bump(self._row + WAIT, nanoseconds)
            self._mark += nanoseconds

    cdef void rest(self) noexcept nogil:
        """Start a new lap without adding the time since the last one."""
        self._mark = dps_nanoseconds()

    cdef void step_ends(self) noexcept nogil:
        """End a step; after a short one some steps are not timed."""
        cdef int64_t total = 0
        cdef int phase
        if not self.timed:
            return
        if self._skip:
            self._skip -= 1
            if not self._skip:
                self._share()
            return
        for phase in range(PUSH - LOAD + 1):
            total += self._part[phase]
        if total < SHORT:
            self._skip = <int> min(SHORT // max(total, 1), MOST_SKIPPED)
        else:
            memset(self._part, 0, sizeof(self._part))

    cdef void flush(self) noexcept nogil:
        """Add the time since the last lap to COMPUTE, or divide it if steps were not timed."""
        if self._skip:
            self._skip = 0
            self._share()
        else:
            self.spend(COMPUTE, -1)

    cdef void _share(self) noexcept nogil:
        """Divide the time since the last lap like the last timed step."""
        cdef int64_t now = dps_nanoseconds(), total = 0, left, share
        cdef int phase, number
        for phase in range(COMPUTE - LOAD, PUSH - LOAD + 1):
            total += self._part[phase]
        left = now - self._mark
        for phase in range(COMPUTE - LOAD + 1, PUSH - LOAD + 1):
            share = <int64_t> (<double> (now - self._mark) * self._part[phase] / max(total, 1))
            left -= share
            dps_bump(self._row + LOAD + phase, share)
            if LOAD + phase == PUSH:
                for number in range(self._n):
                    dps_bump(self._rows[number] + APPLY, share // self._n)
        dps_bump(self._row + COMPUTE, left)
        self._mark = now
        memset(self._part, 0, sizeof(self._part))

    cdef void push(self, int shard, int64_t nbytes) noexcept nogil:
        dps_bump(self._rows[shard] + PUSHES, 1)
        dps_bump(self._rows[shard] + BYTES, nbytes)

    cdef void step(self, int64_t rows, int64_t epoch_rows, double loss) noexcept nogil:
        cdef int64_t bits
        memcpy(&bits, &loss, sizeof(double))
        dps_bump(self._row + STEPS, rows > 0)
        dps_bump(self._row + ROWS, rows)
        dps_set(self._row + EPOCH_ROWS, epoch_rows)
        dps_set(self._row + LOSS, bits)

    cdef void age(self, int shard, int64_t staleness) noexcept nogil:
        cdef int64_t* row = self._rows[shard]
        cdef int number = 0
        while number < BUCKETS - 1 and staleness >> number:
            number += 1
        dps_bump(row + STALENESS + number, 1)
        dps_bump(row + STALE_SUM, staleness)
        if staleness > row[STALE_MAX]:
            dps_set(row + STALE_MAX, staleness)

    cdef void lead(self, int shard, int64_t steps) noexcept nogil:
        if steps > self._rows[shard][LEAD_MAX]:
            dps_set(self._rows[shard] + LEAD_MAX, steps)

    def lap(self, int phase):
        """Add the time since the last lap to LOAD, COMPUTE, PULL, PUSH or WAIT."""
        if not LOAD <= phase <= WAIT:
            raise ValueError(f"no phase has the number {phase}")
        self._skip = 0
        self.spend(phase, -1)
        memset(self._part, 0, sizeof(self._part))

    def waited(self, int64_t nanoseconds):
        """Add waiting time, which is not part of the current phase."""
        if self.timed:
            dps_bump(self._row + WAIT, nanoseconds)
            self._mark += nanoseconds

    def worked(self, int shard, int64_t nanoseconds):
        """Add time spent on a shard's memory."""
        if self.timed:
            dps_bump(self._rows[shard] + APPLY, nanoseconds)

    def begin_epoch(self, int64_t epoch):
        """Begin an epoch, counted from 1."""
        dps_set(self._row + LOSS, 0)
        dps_set(self._row + EPOCH_ROWS, 0)
        dps_set(self._row + EPOCH, epoch)

    def stepped(self, int64_t rows, int64_t epoch_rows, double loss):
        """Count a pushed gradient, its rows, and rows and loss of the epoch so far."""
        self.step(rows, epoch_rows, loss)
