"""Gradients that collect rows until a block is full.

Matrix products are the faster, the larger their blocks. This module holds targets and weights of
waiting rows, and writes raw outputs on request.
"""
from cython cimport floating
from libc.stdint cimport int64_t, uint64_t, uintptr_t

import numpy as np

from dps._kernels.buffer cimport Buffer
from dps._kernels.checks cimport same_length, vector_of
from dps._kernels.rows cimport BlockRows, Gradient, Rows

cdef extern from "mix.h" nogil:
    uint64_t dps_mix(uint64_t x)


cdef Py_ssize_t row_of(const int64_t* order, Py_ssize_t at) noexcept nogil:
    """Return the row at a position of a batch."""
    return order[at] if order is not NULL else at


cdef void take_targets(
    BlockGradient self, const Rows* rows, const int64_t* order, Py_ssize_t at, Py_ssize_t first,
    Py_ssize_t n, const floating* example,
) noexcept nogil:
    """Store targets and weights of n rows from number ``first`` on."""
    cdef Py_ssize_t i, j, target, width = rows.y_width
    cdef floating* y = <floating*> self.y + self.count * width
    cdef floating* weight = <floating*> self.weight + self.count
    for i in range(n):
        # Targets may be in the order of the batch already.
        target = first + i if rows.picked else row_of(order, at + i)
        for j in range(width):
            y[i * width + j] = (<const floating*> rows.y)[target * width + j]
        weight[i] = 1
        if rows.weight is not NULL:
            weight[i] = (<const floating*> rows.weight)[target]
            self.weighted = True
    self.y_width = width


cdef class BlockGradient(Gradient):
    """A gradient that collects rows until a block is full; for one thread at a time."""

    cdef char* _room(self, Py_ssize_t elements, Py_ssize_t itemsize=0) except NULL:
        array = np.zeros(max(1, elements) * (itemsize or (4 if self.single else 8)), "u1")
        self._arrays += (array,)
        return <char*> <uintptr_t> array.ctypes.data

    cdef bint _fit(
        self, Buffer first, Py_ssize_t nbytes, Buffer second, Py_ssize_t others
    ) noexcept nogil:
        """Allocate two pieces of memory; False if there is none."""
        if nbytes <= first.nbytes and others <= second.nbytes:
            return True
        with gil:
            try:
                first.fit(nbytes)
                second.fit(others)
            except MemoryError:
                self.failed = True
                return False
        return True

    cdef int check(self, BlockRows block) except -1:
        Gradient.check(self, block)
        same_length("rows of X", block.rows.n_features, self.n_features)
        if block.rows.y_width != 1:
            same_length("rows of y", block.rows.y_width, self.n_outputs)
        return 0

    cdef void begin(self, uint64_t key) noexcept nogil:
        self.key = dps_mix(key)
        self.done = self.count = self.stored = 0
        self.weighted = False

    cdef double take_through(self, const void* params, void* out) noexcept nogil:
        """Pass the waiting rows through the model, and back unless raw outputs are requested."""
        return 0

    cdef int reraise(self) except -1:
        if self.failed:
            self.failed = False
            raise MemoryError("no room for the rows of a batch")
        return 0

    def raw_batch(self, BlockRows block, order, params, out):
        """Write the raw outputs of rows ``order``, or of all."""
        cdef const int64_t[::1] picks = order
        cdef Py_ssize_t n = len(block) if order is None else len(order)
        cdef const char* at
        cdef const int64_t* chosen = &picks[0] if order is not None and n else NULL
        if self.tabled:
            raise ValueError("not all rows of this table are here")
        kind = "float32" if self.single else "float64"
        self._limit(block, picks, 0, n)
        at = vector_of("params", params, kind, self.size)
        self.raw_out = vector_of("out", out, kind, n * self.n_outputs)
        self.begin(0)
        try:
            with nogil:
                self.add(&block.rows, chosen, 0, n, 0, at, NULL)
                self.take_through(at, NULL)
        finally:
            self.raw_out = NULL
        self.reraise()
