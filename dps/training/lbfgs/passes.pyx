"""A native pass over rows: the sums of losses and gradients at one point.

Gradients are added up in the model's type over as many rows as keep it exact enough, and in double
beyond.
"""
from cython cimport floating
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import numpy as np

from dps._kernels.checks cimport vector_of
from dps._kernels.rows cimport BlockRows, Gradient, Rows

cdef extern from "waiting.h" nogil:
    double dps_now()


cdef void _fold(floating* part, double* whole, Py_ssize_t n, bint first) noexcept nogil:
    """Add a sum to the one in double, and clear it."""
    cdef Py_ssize_t i
    if first:
        for i in range(n):
            whole[i] = part[i]
    else:
        for i in range(n):
            whole[i] += part[i]
    memset(part, 0, n * sizeof(floating))


cdef void _round(floating* part, const double* whole, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        part[i] = <floating> whole[i]


cdef class GradientSum:
    """The sums of a pass."""

    def __init__(self, Gradient gradient, Py_ssize_t most, beat, double every):
        """`beat` is called while rows are added, at least `every` seconds apart."""
        if most < 1:
            raise ValueError(f"a sum is of one row at least, got {most}")
        self.gradient = gradient
        gradient.in_passes = True
        self.most = most
        self.beat = beat
        self.every = every
        self._part = np.zeros(gradient.size, "f4" if gradient.single else "f8")
        self.part = <char*> <uintptr_t> self._part.ctypes.data
        self.whole = np.zeros(gradient.size)
        gradient.owner = beat, self._part  # the owner of the points

    def begin(self, params):
        """Begin a pass at a point, (n,), which must not change before its end."""
        cdef const char* point = vector_of(
            "params", params, "float32" if self.gradient.single else "float64", self.gradient.size
        )
        self._params = params
        self.start(point)

    def add(self, block, order, Py_ssize_t start, Py_ssize_t stop):
        """Add rows `order[start:stop]`, or `start:stop`."""
        cdef Part part
        cdef BlockRows rows = self.gradient.rows_of(block)
        if self.params is NULL:
            raise RuntimeError("begin a pass before rows are added to it")
        _bind(&part, self.gradient, rows, order, start, stop)
        with nogil:
            self.add_rows(part.rows, part.order, start, stop, part.limit)

    def end(self):
        """Return the sums of losses and of gradients, the latter in the model's type."""
        self.finish()
        self._params, self.params = None, NULL
        return self.loss, self._part.copy()

    cdef void start(self, const char* params) noexcept nogil:
        """Begin a pass at a point, which must not change before its end."""
        self.params = params
        self.loss = self.summed = 0
        self.folded = False
        memset(self.part, 0, self.gradient.size * (4 if self.gradient.single else 8))
        self.gradient.begin(0)
        self.beaten = dps_now()

    cdef int add_rows(
        self, const Rows* rows, const int64_t* chosen, Py_ssize_t start, Py_ssize_t stop,
        Py_ssize_t limit,
    ) except -1 nogil:
        """Add rows; ``limit`` is the number of rows, or of selected ones."""
        cdef Py_ssize_t n
        while start < stop:
            if self.summed >= self.most:
                self._fold()
            n = min(self.most, stop - start)
            if self.gradient.most:
                n = min(n, self.gradient.most)
            self.loss += self.gradient.add(
                rows, chosen, start, n, limit - start - n, self.params, self.part
            )
            if self.gradient.failed:
                with gil:
                    self.gradient.reraise()
            self.summed += n
            start += n
            if dps_now() > self.beaten + self.every:
                with gil:
                    self.beat()
                self.beaten = dps_now()
        return 0

    cdef int finish(self) except -1 nogil:
        """Write the whole sum in the model's type."""
        self._close()
        if not self.folded:
            return 0
        self._fold()
        if self.gradient.single:
            _round(<float*> self.part, &self.whole[0], self.gradient.size)
        else:
            _round(<double*> self.part, &self.whole[0], self.gradient.size)
        return 0

    cdef int _close(self) except -1 nogil:
        """End a batch; this calls a model in Python."""
        self.loss += self.gradient.finish(self.params, self.part)
        if self.gradient.failed:
            with gil:
                self.gradient.reraise()
        return 0

    cdef int _fold(self) except -1 nogil:
        if self.gradient.size == 0:
            return 0
        self._close()
        if self.gradient.single:
            _fold(<float*> self.part, &self.whole[0], self.gradient.size, not self.folded)
        else:
            _fold(<double*> self.part, &self.whole[0], self.gradient.size, not self.folded)
        self.folded = True
        self.summed = 0
        return 0


cdef int _bind(
    Part* part, Gradient gradient, BlockRows block, order, Py_ssize_t start, Py_ssize_t stop
) except -1:
    """Check rows, and get their address."""
    cdef const int64_t[::1] picks = order
    part.limit = gradient._limit(block, picks, start, stop)
    if block.rows.picked:
        raise ValueError("rows of a pass are in the order of their block")
    part.rows = &block.rows
    part.order = &picks[0] if order is not None and part.limit else NULL
    part.start, part.stop = start, stop
    return 0


cdef class Pass:
    """Repeated passes over the same rows."""

    def __init__(self, GradientSum sum, parts):
        """Each part has the arguments of `GradientSum.add`."""
        free(self.parts)  # from an earlier call
        self.sum = sum
        self.parts = <Part*> calloc(max(len(parts), 1), sizeof(Part))
        if self.parts is NULL:
            raise MemoryError
        self._arrays = list(parts)
        self.n_parts = len(parts)
        self.count = 0
        for number, (block, order, start, stop) in enumerate(parts):
            rows = sum.gradient.rows_of(block)
            self._arrays.append(rows)
            _bind(&self.parts[number], sum.gradient, rows, order, start, stop)
            self.count += stop - start

    def __dealloc__(self):
        free(self.parts)

    def sums(self, params):
        """The sums of losses and of gradients at a point."""
        cdef const char* point
        self.sum.begin(params)
        point = self.sum.params
        with nogil:
            self.run(point)
        return self.sum.loss, self.sum._part.copy()

    cdef int run(self, const char* params) except -1 nogil:
        """Compute the sums at a point, in `sum`."""
        cdef Py_ssize_t number
        cdef Part* part
        self.sum.start(params)
        for number in range(self.n_parts):
            part = &self.parts[number]
            self.sum.add_rows(part.rows, part.order, part.start, part.stop, part.limit)
        self.sum.finish()
        return 0


cdef class StreamedPass(Pass):
    """Passes over rows that are read each time: `rows` yields arguments of `GradientSum.add`."""

    def __init__(self, GradientSum sum, rows, Py_ssize_t count):
        Pass.__init__(self, sum, [])
        self.rows = rows
        self.count = count

    cdef int run(self, const char* params) except -1 nogil:
        self.sum.start(params)
        with gil:
            for block, order, start, stop in self.rows():
                self.sum.add(block, order, start, stop)
        self.sum.finish()
        return 0
