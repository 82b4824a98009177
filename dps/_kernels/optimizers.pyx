"""Element-wise optimizer updates with their proximal step, in place, on flat vectors.

Owns the arithmetic of one update; its loops are in updates_template.h. All arithmetic is IEEE and
in the arrays' own type, element by element: a vector that is updated in slices, or with other SIMD
registers, ends with the same bits. The proximal step of an element with step size s is ``p =
soft(p, s * l1) / (1 + s * l2)``; without penalties the bare update runs. An optimizer is added by
its element there and a name here.
"""
from cython cimport floating
from libc.stdint cimport int64_t

from dps._kernels.checks cimport contiguous_rows, same_length

cdef extern from "updates.h" nogil:
    bint dps_update_float(
        const UpdateSpec* spec, float* p, const float* g, float* state, Py_ssize_t stride,
        Py_ssize_t n, int64_t step, double lr, double l1, double l2)
    bint dps_update_double(
        const UpdateSpec* spec, double* p, const double* g, double* state, Py_ssize_t stride,
        Py_ssize_t n, int64_t step, double lr, double l1, double l2)

# Kinds of runs of coordinates, for Python.
KINDS_OF_RUNS = {"free": FREE, "penalised": PENALISED, "untrained": UNTRAINED}

# Optimizers, with the rows of their state.
cdef dict KINDS = {
    "sgd": (SGD, 0),
    "momentum": (MOMENTUM, 1),
    "adagrad": (ADAGRAD, 1),
    "scaled_adagrad": (SCALED_ADAGRAD, 2),
    "adam": (ADAM, 2),
}


cdef bint update(
    const UpdateSpec* spec, floating* p, const floating* g, floating* state, Py_ssize_t stride,
    Py_ssize_t n, int64_t step, double lr, double l1, double l2,
) noexcept nogil:
    """Do update number ``step``, from 1, of n elements; rows of their state are ``stride`` apart.

    Returns whether all updated elements are finite.
    """
    if floating is float:
        return dps_update_float(spec, p, g, state, stride, n, step, lr, l1, l2)
    else:
        return dps_update_double(spec, p, g, state, stride, n, step, lr, l1, l2)


cdef bint change(floating* p, const floating* g, Py_ssize_t n) noexcept nogil:
    """Subtract a mean from untrained coordinates; True if all are finite."""
    cdef Py_ssize_t i
    cdef floating found = 0
    for i in range(n):
        p[i] -= g[i]
        found += p[i] * 0
    return found == 0


cdef class UpdateKernel:
    """An optimizer by name, for arrays here and for other kernels through `update`."""

    def __init__(
        self, str name, *, double momentum=0.0, bint nesterov=False, double beta1=0.9,
        double beta2=0.999, double epsilon=1e-8, bint lazy=False, double decay=0.0,
    ):
        if name not in KINDS:
            raise ValueError(f"there is no optimizer {name!r}, only {sorted(KINDS)}")
        self.name = name
        self.spec.kind, self.spec.state_rows = KINDS[name]
        self.spec.momentum = momentum
        self.spec.nesterov = nesterov
        self.spec.beta1 = beta1
        self.spec.beta2 = beta2
        self.spec.epsilon = epsilon
        self.spec.averaged_from = -1
        self.spec.horizon = 0
        self.spec.decay = decay
        self.lazy = lazy or self.spec.kind in (
            SGD, MOMENTUM, ADAGRAD, SCALED_ADAGRAD
        )

    def averaged(self, int64_t start, int64_t horizon=0):
        """Return the kernel with a running mean of updates after the first ``start``.

        The mean is one more row of state. It is over about the last ``horizon`` updates; 0: all.
        """
        cdef UpdateKernel kernel = UpdateKernel(self.name)
        kernel.spec = self.spec
        kernel.spec.averaged_from = start
        kernel.spec.horizon = horizon
        kernel.lazy = False
        return kernel

    def update(
        self, floating[::1] params, const floating[::1] grad, floating[:, :] state, *,
        int64_t step, double lr, double l1=0.0, double l2=0.0,
    ):
        """Apply update `step`, from 1, in place; True if all updated params are finite.

        `params` and `grad` are (n,), `state` is (state_rows, n).
        """
        cdef Py_ssize_t n = params.shape[0], rows = self.spec.state_rows
        cdef Py_ssize_t stride = state.strides[0] // <Py_ssize_t> sizeof(floating)
        cdef floating* held = NULL
        cdef bint finite
        same_length("grad", grad.shape[0], n)
        same_length("rows of state", state.shape[1], n)
        same_length("state", state.shape[0], rows + (self.spec.averaged_from >= 0))
        contiguous_rows("state", n, state.strides[1], sizeof(floating))
        if step < 1:
            raise ValueError(f"step counts updates from 1, got {step}")
        if n == 0:
            return True
        if state.shape[0]:
            held = &state[0, 0]
        with nogil:
            finite = update(
                &self.spec, &params[0], &grad[0], held, stride, n, step, lr, l1, l2
            )
        return finite
