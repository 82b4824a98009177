"""Calls of users' Python code from the loops: a model's gradient.

This module passes rows to a model in Python, and its exceptions to the interpreter.
"""
from libc.math cimport NAN
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

import numpy as np

from dps._kernels.rows cimport BlockRows, Gradient, Rows
from dps._runtime.updates cimport view


cdef class PythonGradient(Gradient):
    """The gradient of a model in Python, which gets `most` rows at a time, or all."""

    cdef object model
    cdef object dtype
    cdef object error
    cdef object rng
    cdef bint begun
    cdef uint64_t key
    cdef list parts  # parts of this batch, for a model that takes whole batches
    cdef object point
    cdef object target
    cdef const char* point_at  # address of the arrays above
    cdef char* target_at

    def __init__(self, model, Py_ssize_t most):
        self.model = model
        self.dtype = np.dtype(model.dtype)
        self.size = model.layout.size
        self.single = self.dtype.itemsize == 4
        self.most = most
        self.parts = [] if getattr(model, "whole", False) else None

    cdef void begin(self, uint64_t key) noexcept nogil:
        self.key = key
        self.begun = True

    cdef BlockRows rows_of(self, block):
        cdef BlockRows rows = BlockRows.__new__(BlockRows)
        memset(&rows.rows, 0, sizeof(Rows))
        rows.rows.single = self.single
        rows.rows.length = len(block.y)
        rows.rows.block = <void*> block
        rows._arrays = (block,)
        return rows

    cdef double add(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, const void* params, void* out,
    ) noexcept nogil:
        with gil:
            try:
                segment = self._segment(rows, order, start, m)
                if self.parts is None:
                    return self._gradient(
                        segment.X, segment.y, segment.weight, <char*> params, <char*> out
                    )
                self.parts.append((self.model.take(segment.X), segment.y, segment.weight))
                return 0
            except BaseException as error:
                self.error, self.failed = error, True
                return NAN

    cdef double finish(self, const void* params, void* out) noexcept nogil:
        if self.parts is None:
            return 0
        with gil:
            try:
                return self._finish(<char*> params, <char*> out)
            except BaseException as error:
                self.error, self.failed = error, True
                return NAN

    cdef double _finish(self, char* params, char* out) except *:
        """Call the model with all parts of a batch."""
        parts, self.parts = self.parts, []
        if not parts or self.failed:
            return NAN if self.failed else 0
        if len(parts) == 1:
            X, y, weight = parts[0]
        else:
            taken, targets, weights = zip(*parts)
            X, y, weight = self.model.join(taken), np.concatenate(targets), None
            if weights[0] is not None:  # all parts have weights, or none
                weight = np.concatenate(weights)
        return self._gradient(X, y, weight, params, out)

    cdef object _segment(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m
    ):
        if order is NULL:
            return (<object> rows.block).segment(start, start + m, None)
        picks = np.empty(m, np.int64)  # the model may keep it
        memcpy(<void*> <uintptr_t> picks.ctypes.data, order + start, m * sizeof(int64_t))
        return (<object> rows.block).segment(0, m, picks)

    cdef double _gradient(self, X, y, weight, char* params, char* out) except *:
        # The same arrays for the same memory: a model may cache values that it derives from them.
        if self.point is None or self.point_at != params:
            self.point, self.point_at = view(params, self.dtype, self.size, self.owner), params
            self.point.flags.writeable = False
        if self.target is None or self.target_at != out:
            self.target, self.target_at = view(out, self.dtype, self.size, self.owner), out
        if getattr(self.model, "draws", False) is False:
            return self.model.loss_gradient(self.point, X, y, weight, out=self.target)
        if self.begun:
            self.rng = np.random.Generator(np.random.Philox(key=self.key))
            self.begun = False
        return self.model.loss_gradient(
            self.point, X, y, weight, out=self.target, rng=self.rng
        )

    cdef int reraise(self) except -1:
        if self.failed:
            error, self.error, self.failed = self.error, None, False
            raise error
        return 0
