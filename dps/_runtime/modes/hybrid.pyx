"""Hybrid: rows of a table are updated as gradients arrive, other tensors synchronously.

A push has two parts. The first half of the exchange (mapped.pyx) applies the gradient at the
table's ids as in async: at once, lock-free, by the rank itself. Only then the rank arrives, with
the dense gradients, which are summed, applied and waited for as in sync. So tables are never summed
over ranks, and no rank waits for them. The gradient of a row is divided by the rows of all ranks'
batches, taken as many as this rank has: where ranks touch other rows, their updates together are
those of sync.

When all have arrived, all rows of the step have been written. So the last step of an epoch may
bring rows up to date and give them up, slice by slice, before DONE: no rank writes rows between
ARRIVED and DONE. Between DONE and the next ARRIVED rows are read while others write them, and two
ranks that write a row at once may each lose element updates of the other. A crash leaves half a
step, as in async and in sync; only the last snapshot counts.
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from dps._kernels.buffer cimport Buffer
from dps._runtime.channel.base cimport Picks
from dps._runtime.wire.message cimport BAD_GRADIENT, BAD_UPDATE, RAN, STOPPED
from dps._runtime.modes.synchronous cimport SynchronousChannel
from dps._runtime.shared.words cimport W_STOP, load


cdef class HybridChannel(SynchronousChannel):
    """A rank's channel where rows of a table are updated when they come, all else synchronously."""

    cdef Buffer table_keys  # keys of the table in a push; then the others
    cdef Buffer table_values

    def __init__(self, *given):
        SynchronousChannel.__init__(self, *given)
        self.table_keys, self.table_values = Buffer(), Buffer()

    cdef int push(self) except -1 nogil:
        cdef Picks whole = self.picks
        cdef int status
        self.begin_epoch()
        if load(&self.words, W_STOP) != 0:
            return STOPPED
        status = self.apply_table()
        if status == RAN:
            status = SynchronousChannel.push(self)
        self.picks = whole
        return status

    cdef int apply_table(self) except -1 nogil:
        """Apply the table's part of a push, and leave the rest to be pushed."""
        cdef Py_ssize_t n = self.picks.n, each = self.key_bytes, i, rows = 0, rest = 0
        cdef const char* values = self.values_of_picks()
        cdef int64_t* keys = <int64_t*> self.table_keys.fit(2 * n * sizeof(int64_t))
        cdef char* grad = self.table_values.fit(2 * n * each)
        for i in range(n):
            if self.picks.keys[i] < 0:
                keys[rows] = self.picks.keys[i]
                memcpy(grad + rows * each, values + i * each, each)
                rows += 1
            else:
                keys[n + rest] = self.picks.keys[i]
                memcpy(grad + (n + rest) * each, values + i * each, each)
                rest += 1
        self.picks.keys, self.picks.at, self.picks.n = keys + n, NULL, rest
        self.payload.given = grad + n * each
        if rows == 0:
            return RAN
        self.activity.push(self.shard, rows * (each + 8))
        if not self.numbers.is_finite(grad, rows * self.key_width):
            return BAD_GRADIENT
        self.numbers.divide(
            grad, <double> (self.request.rows * self.slice.n), rows * self.key_width
        )
        if not self.keyed.make_and_apply(keys, grad, rows, self.request.step):
            return BAD_UPDATE
        return RAN
