"""Sync: the shards hold the parameters, and an update waits for every rank.

One step applies ``sum_r g_r / sum_r n_r``, summed in rank order: an exchange (mapped.pyx) in which
each rank applies the mean to its slice of the parameters, or the last rank to all of them. For
element-wise optimizers the result is the same. By keys the last step of an epoch brings a rank's
whole slice up to date before DONE, so that nothing is pending between epochs.
"""
from libc.stdint cimport int64_t

from dps._runtime.shared.activity cimport PULL as PULLING
from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.wire.message cimport RAN
from dps._runtime.step cimport Step


cdef class SynchronousChannel(MappedChannel):
    """A rank's channel to a shard that holds parameters."""

    cdef int use(self, Py_ssize_t first, Py_ssize_t last) except -1 nogil:
        return self.update.apply(
            self.params, self.scratch.at, self.state, self.size, first, last, self.request.step,
            self.request.rate,
        )

    cdef int pushed(self, char* taken) except -1 nogil:
        cdef int status = self.reduce_slice()
        if status == RAN and taken != self.params:
            self.give(self.params, taken)
            self.activity.spend(PULLING, -1)
        return status

    cdef int use_keys(self, Py_ssize_t n) except -1 nogil:
        cdef int64_t step = self.request.step
        cdef bint finite = self.keyed.make_and_apply(
            self.key_slots.merged.keys.list, self.key_slots.sums.at, n, step
        )
        if self.keyed.is_last(step):
            finite &= self.keyed.flush(self.slice.start, self.slice.stop, step)
            self.keyed.expire_rows(self.slice.start, self.slice.stop, step)
        return finite


cdef class SynchronousStep(Step):
    """A rank's synchronous steps; with one mapped shard `params` may be those of the window."""
