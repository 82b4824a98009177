"""What users write in Python, as the loops call it: a model's gradient.

Owns how rows reach a model in Python, and how what it raises reaches the interpreter again. It must
not know ranks or modes.
"""
from libc.math cimport NAN
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

import numpy as np

from dps._kernels.rows cimport BlockRows, Gradient, Rows
from dps._runtime.updates cimport view


cdef class PythonGradient(Gradient):
    """The gradient of a model written in Python; see the stub."""

    cdef object model
    cdef object dtype
    cdef object error
    cdef object rng
    cdef bint draws
    cdef bint begun
    cdef uint64_t key

    def __init__(self, model, Py_ssize_t most):
        self.model = model
        self.dtype = np.dtype(model.dtype)
        self.size = model.layout.size
        self.single = self.dtype.itemsize == 4
        self.most = most
        self.draws = getattr(model, "draws", False)

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
                return self._add(rows, order, start, m, <char*> params, <char*> out)
            except BaseException as error:
                self.error, self.failed = error, True
                return NAN

    cdef double _add(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m, char* params,
        char* out,
    ) except *:
        picks = None
        if order is not NULL:
            picks = view(<char*> order, np.dtype(np.int64), start + m)
        segment = (<object> rows.block).segment(start, start + m, picks)
        point = view(params, self.dtype, self.size)
        point.flags.writeable = False
        options = {"out": view(out, self.dtype, self.size)}
        if self.draws:
            if self.begun:
                self.rng = np.random.Generator(np.random.Philox(key=self.key))
                self.begun = False
            options["rng"] = self.rng
        return self.model.loss_gradient(point, segment.X, segment.y, segment.weight, **options)

    cdef int reraise(self) except -1:
        if self.failed:
            error, self.error, self.failed = self.error, None, False
            raise error
        return 0
