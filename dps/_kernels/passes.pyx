"""A pass over rows without the interpreter: the sums of losses and gradients at one point.

Owns where the gradient is added up: in the model's type over so many rows as keep it exact enough,
in double beyond. The twin of the sum in dps/training/sums.py. It must not know where the rows come
from, or who waits for the sums.
"""
from cython cimport floating
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memset

import numpy as np

from dps._kernels.checks cimport same_length
from dps._kernels.rows cimport BlockRows, Gradient

cdef extern from "waiting.h" nogil:
    double dps_now()


cdef void _fold(floating* part, double* whole, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        whole[i] += part[i]
    memset(part, 0, n * sizeof(floating))


cdef class GradientSum:
    """Adds up a pass; see the stub for what its methods take."""

    cdef Gradient gradient
    cdef object beat
    cdef double every
    cdef double beaten
    cdef Py_ssize_t most
    cdef Py_ssize_t summed      # rows in the sum of the model's type
    cdef double loss
    cdef object _part
    cdef object _params
    cdef double[::1] whole
    cdef char* part
    cdef const char* params

    def __init__(self, Gradient gradient, Py_ssize_t most, beat, double every):
        if most < 1:
            raise ValueError(f"a sum is of one row at least, got {most}")
        self.gradient = gradient
        self.most = most
        self.beat = beat
        self.every = every
        self._part = np.zeros(gradient.size, "f4" if gradient.single else "f8")
        self.part = <char*> <uintptr_t> self._part.ctypes.data
        self.whole = np.zeros(gradient.size)

    def begin(self, params):
        flags = params.flags
        if params.dtype != self._part.dtype or not (flags.c_contiguous and flags.aligned):
            raise ValueError(
                f"params must be contiguous, aligned {self._part.dtype}, got {params.dtype}"
            )
        same_length("params", params.size, self.gradient.size)
        self._params = params
        self.params = <const char*> <uintptr_t> params.ctypes.data
        self.loss = self.summed = 0
        self._part.fill(0)
        self.whole[:] = 0
        self.beaten = dps_now()

    def add(self, BlockRows block, order, Py_ssize_t start, Py_ssize_t stop):
        cdef const int64_t[::1] picks = order
        cdef const int64_t* chosen = NULL
        cdef Py_ssize_t limit = self.gradient._limit(block, picks, start, stop)
        if self._params is None:
            raise RuntimeError("begin a pass before rows are added to it")
        if block.rows.picked:
            raise ValueError("rows of a pass are in the order of their block")
        if order is not None and limit:
            chosen = &picks[0]
        with nogil:
            self._add(block, chosen, start, stop, limit)

    def end(self):
        self._fold()
        self._params = None
        return self.loss, np.asarray(self.whole).astype(self._part.dtype)

    cdef int _add(
        self, BlockRows block, const int64_t* chosen, Py_ssize_t start, Py_ssize_t stop,
        Py_ssize_t limit,
    ) except -1 nogil:
        cdef Py_ssize_t n
        while start < stop:
            if self.summed >= self.most:
                self._fold()
            n = min(self.most, stop - start)
            self.loss += self.gradient.add(
                &block.rows, chosen, start, n, limit - start - n, self.params, self.part
            )
            self.summed += n
            start += n
            if dps_now() > self.beaten + self.every:
                with gil:
                    self.beat()
                self.beaten = dps_now()
        return 0

    cdef void _fold(self) noexcept nogil:
        if self.summed:
            if self.gradient.single:
                _fold(<float*> self.part, &self.whole[0], self.gradient.size)
            else:
                _fold(<double*> self.part, &self.whole[0], self.gradient.size)
            self.summed = 0
