"""An optimizer with its penalty as steps apply it: a kernel, or a user's Python code.

It maps runs of equally penalised coordinates to a part of a vector.
"""
from cpython.buffer cimport PyBuffer_FillInfo
from cython cimport floating
from libc.stdint cimport int64_t, uint64_t, uintptr_t

import numpy as np

from dps._kernels.optimizers cimport (
    PENALISED, UNTRAINED, UpdateKernel, UpdateSpec, change, update
)
from dps._kernels.reduce cimport BLOCK
from dps._kernels.subnormal cimport dps_no_subnormals, dps_restore


def bind(how, dtype, Py_ssize_t size, owner):
    """Bind an `Update` to vectors of a dtype and size in memory of an owner."""
    if how.optimizer.native is None:
        return PythonUpdate(how, dtype, size, owner)
    return NativeUpdate(how, dtype == "float32")


cdef class BoundUpdate:
    """Applies a mean gradient to a part of a vector."""

    cdef int apply(
        self, char* params, const char* mean, char* state, Py_ssize_t stride, Py_ssize_t start,
        Py_ssize_t stop, int64_t step, double rate,
    ) except -1 nogil:
        """Update params[start:stop] by mean[:stop - start]; True if all are finite.

        Rows of ``state`` are ``stride`` apart, as long as ``params``.
        """
        return 0


cdef bint _apply(
    const UpdateSpec* spec, const UpdateSpec* free, const int64_t* runs, Py_ssize_t count,
    double l1, double l2, floating* params, const floating* mean, floating* state,
    Py_ssize_t stride, Py_ssize_t start, Py_ssize_t stop, int64_t step, double rate,
) noexcept nogil:
    cdef Py_ssize_t i, a, b
    cdef bint finite = True, penalised
    cdef uint64_t mode = dps_no_subnormals()
    for i in range(count):
        a = max(<Py_ssize_t> runs[3 * i], start)
        b = min(<Py_ssize_t> runs[3 * i + 1], stop)
        penalised = runs[3 * i + 2] == PENALISED
        if a < b and runs[3 * i + 2] == UNTRAINED:
            finite &= change(params + a, mean + (a - start), b - a)
        elif a < b:
            finite &= update(
                spec if penalised else free, params + a, mean + (a - start), state + a, stride,
                b - a, step, rate,
                l1 if penalised else 0.0, l2 if penalised else 0.0,
            )
    dps_restore(mode)
    return finite


cdef class NativeUpdate(BoundUpdate):
    """An update by a kernel."""

    def __init__(self, how, bint single):
        self.spec = (<UpdateKernel?> how.optimizer.native).spec
        self.free = (<UpdateKernel?> how.optimizer._undecayed.native).spec
        self.l1, self.l2 = how.l1, how.l2
        self.single = single
        self.most = BLOCK
        self._runs = np.array(how.segments, np.int64).reshape(-1, 3)
        self.count = len(self._runs)
        self.runs = <const int64_t*> <uintptr_t> self._runs.ctypes.data

    cdef int apply(
        self, char* params, const char* mean, char* state, Py_ssize_t stride, Py_ssize_t start,
        Py_ssize_t stop, int64_t step, double rate,
    ) except -1 nogil:
        if self.single:
            return _apply(
                &self.spec, &self.free, self.runs, self.count, self.l1, self.l2,
                <float*> params, <const float*> mean, <float*> state, stride, start, stop, step,
                rate,
            )
        return _apply(
            &self.spec, &self.free, self.runs, self.count, self.l1, self.l2, <double*> params,
            <const double*> mean, <double*> state, stride, start, stop, step, rate,
        )


cdef class PythonUpdate(BoundUpdate):
    """An optimizer written in Python, called with views of the vectors."""

    def __init__(self, how, dtype, Py_ssize_t size, owner):
        self.update = how
        self.owner = owner
        self.dtype = np.dtype(dtype)
        self.size = size
        self.state_rows = how.optimizer.state_rows
        self.most = max(size, 1)

    cdef int apply(
        self, char* params, const char* mean, char* state, Py_ssize_t stride, Py_ssize_t start,
        Py_ssize_t stop, int64_t step, double rate,
    ) except -1 nogil:
        with gil:
            if start == stop:
                return 1
            return bool(
                self.update.apply(
                    view(params, self.dtype, self.size, self.owner),
                    view(<char*> mean, self.dtype, stop - start, self.owner),
                    view(state, self.dtype, self.state_rows * stride, self.owner)
                    .reshape(self.state_rows, stride)[:, : self.size],
                    start, stop, step=step, lr=rate,
                )
            )


cdef class Memory:
    """Bytes in some memory, and the object that keeps it alive."""

    cdef char* at
    cdef Py_ssize_t nbytes
    cdef object owner

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.at, self.nbytes, 0, flags)


cdef object view(char* at, dtype, Py_ssize_t n, owner):
    """Return an array on memory of an owner, which lives as long as the array."""
    cdef Memory memory = Memory.__new__(Memory)
    if n == 0:
        return np.empty(0, dtype)
    memory.at, memory.nbytes, memory.owner = at, n * dtype.itemsize, owner
    return np.frombuffer(memory, dtype)
