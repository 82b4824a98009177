"""A rank's channel to one shard: what a step does there, in mapped memory or over a wire.

A step has two halves. ``begin`` hands over the rank's values, ``finish`` waits and takes the
answer; in between a rank begins at its other shards. For a remote rank a thread at the shard runs
the same two halves (service.pyx), with the values in the rank's slot already.

    mapped.pyx      in mapped memory: the order in which words are written
    host_sum.pyx    sums of the ranks of a host, before one of them sends
    stream.pyx     over a wire

What a push does in mapped memory is its mode's: synchronous.pyx, asynchronous.pyx, ...
"""
from libc.stdint cimport int64_t, uint16_t, uintptr_t
from libc.string cimport memcpy, memset

from dps._kernels.buffer cimport Buffer
from dps._kernels.typed_ops cimport typed_ops
from dps._runtime.wire.message cimport STOPPED


cdef class ErrorFeedback:
    """Vectors as bfloat16, each with the rounding error of the previous one (Seide et al., 2014).
    """

    def __init__(self, bint single, Py_ssize_t size):
        self.numbers, self.size = typed_ops(single), size
        self.narrowed, self.left = Buffer(), None

    cdef const char* narrow(
        self, const char* x, Py_ssize_t first, Py_ssize_t n, bint last
    ) except NULL nogil:
        """Return the n elements of x from `first` on; the `last` vector forgets its error."""
        cdef Py_ssize_t itemsize = self.numbers.itemsize, nbytes = self.size * itemsize
        cdef uint16_t* out = <uint16_t*> self.narrowed.fit(n * sizeof(uint16_t))
        if self.left is None:
            with gil:
                self.left = Buffer()
            memset(self.left.fit(nbytes), 0, nbytes)
        self.numbers.narrow(out, x + first * itemsize, self.left.at + first * itemsize, n)
        if last:
            memset(self.left.at + first * itemsize, 0, n * itemsize)
        return <const char*> out


cdef class ShardChannel:
    """A rank's channel to one shard.

    size: elements of the shard.
    first: where they begin in the whole vector.
    key_width: elements that a key stands for; 0: none go by keys.
    """

    def __init__(
        self, dtype, Py_ssize_t size, int n_ranks, Py_ssize_t first, Py_ssize_t key_width
    ):
        self._arrays = []
        self.numbers = typed_ops(dtype == "float32")
        self.size = size
        self.n_ranks = n_ranks
        self.first = first
        if key_width:
            if size % key_width or first % key_width:
                raise ValueError(
                    f"elements {first} to {first + size} are no keys of {key_width} elements"
                )
            self.first_key, self.n_keys = first // key_width, size // key_width
        self.key_width, self.key_bytes = key_width, key_width * self.numbers.itemsize
        self.values, self.pick_keys, self.pick_at = Buffer(), Buffer(), Buffer()

    cdef char* keep(self, array) except? NULL:
        """Keep an array alive; return its address."""
        self._arrays.append(array)
        return <char*> <uintptr_t> array.ctypes.data

    cdef void pick_all(self, int64_t* keys, Py_ssize_t n) noexcept nogil:
        """Note that the shard has all of these keys, with the same numbers."""
        self.picks.keys, self.picks.at, self.picks.n = keys, NULL, n

    cdef int pick_none(self, Py_ssize_t most) except -1 nogil:
        """Note that the shard has none of the keys, so far; there are at most `most`."""
        self.picks.keys = <int64_t*> self.pick_keys.fit(most * sizeof(int64_t))
        self.picks.at = <int64_t*> self.pick_at.fit(most * sizeof(int64_t))
        self.picks.n = 0
        return 0

    cdef int begin(self, const char* given) except -1 nogil:
        """Hand over the request and the shard's part of a whole vector."""
        return STOPPED

    cdef int finish(self, char* taken) except -1 nogil:
        """Wait, and write the answer to a whole vector and to `answer`."""
        return STOPPED

    cdef int heartbeat(self) except -1 nogil:
        """Send a heartbeat while the rank pushes nothing."""
        return 0

    cdef int put(
        self, int place, const char* values, Py_ssize_t nbytes, int64_t rows, int64_t sequence
    ) except -1 nogil:
        """Put a message of a ring into the shard's window, and announce it."""
        return STOPPED

    cdef void _place(self, const char* part, char* whole) noexcept nogil:
        """Copy the shard's part into the whole vector, unless it is there already."""
        cdef Py_ssize_t itemsize = self.numbers.itemsize
        if part != whole:
            memcpy(whole + self.first * itemsize, part, self.size * itemsize)

    cdef void _globalise(self, int64_t* keys, Py_ssize_t n) noexcept nogil:
        """Convert the shard's keys to keys of the whole vector."""
        cdef Py_ssize_t i
        for i in range(n):
            keys[i] += self.first_key
