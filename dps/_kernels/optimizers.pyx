"""Element-wise optimizer updates with their proximal step, in place, on flat vectors.

Owns the arithmetic of one update. It must not know shards, modes or who holds the vectors.
All arithmetic is IEEE and in the arrays' own type, element by element: a vector that is updated in
slices, or with other SIMD registers, ends with the same bits. The proximal step of an element with
step size s is ``p = soft(p, s * l1) / (1 + s * l2)``; without penalties the bare update runs.
An optimizer is added by a name, a loop and a line in `update`.
"""
from cython cimport floating
from libc.math cimport sqrt, sqrtf
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from dps._kernels.checks cimport NotFinite, contiguous_rows, none_seen, note, same_length

cdef dict KINDS = {"sgd": SGD, "momentum": MOMENTUM, "adagrad": ADAGRAD, "adam": ADAM}
cdef tuple STATE_ROWS = (0, 1, 1, 2)


cdef inline floating _sqrt(floating x) noexcept nogil:
    return sqrtf(x) if floating is float else sqrt(x)


cdef bint _sgd(
    floating* p, const floating* g, Py_ssize_t n,
    floating lr, floating l1, floating l2, bint penalised,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef NotFinite seen = NotFinite(0, 0)
    for i in range(n):
        p[i] = p[i] - lr * g[i]
        if penalised:
            p[i] = shrink(p[i], lr, l1, l2)
        note(&seen, p[i])
    return none_seen(seen)


cdef inline bint _momentum(
    floating* p, const floating* g, floating* v, Py_ssize_t n,
    floating lr, floating mu, floating s, floating l1, floating l2, bint penalised, bint nesterov,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef NotFinite seen = NotFinite(0, 0)
    cdef floating velocity, direction
    for i in range(n):
        velocity = mu * v[i] + g[i]
        v[i] = velocity
        direction = g[i] + mu * velocity if nesterov else velocity
        p[i] = p[i] - lr * direction
        if penalised:
            p[i] = shrink(p[i], s, l1, l2)
        note(&seen, p[i])
    return none_seen(seen)


cdef bint _adagrad(
    floating* p, const floating* g, floating* squares, Py_ssize_t n,
    floating lr, floating l1, floating l2, bint penalised,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef NotFinite seen = NotFinite(0, 0)
    cdef floating total, root
    for i in range(n):
        total = squares[i] + g[i] * g[i]
        squares[i] = total
        root = _sqrt(total)
        p[i] = p[i] - lr * g[i] / root
        if penalised:
            p[i] = shrink(p[i], lr / root, l1, l2)
        note(&seen, p[i])
    return none_seen(seen)


cdef bint _adam(
    floating* p, const floating* g, floating* first, floating* second, Py_ssize_t n,
    floating lr, floating rate, floating root_scale, floating epsilon,
    floating beta1, floating rest1, floating beta2, floating rest2,
    floating l1, floating l2, bint penalised,
) noexcept nogil:
    """With rate = lr / (1 - beta1^t) and root_scale = 1 / sqrt(1 - beta2^t)."""
    cdef Py_ssize_t i
    cdef NotFinite seen = NotFinite(0, 0)
    cdef floating m, v, denominator
    for i in range(n):
        m = beta1 * first[i] + rest1 * g[i]
        v = beta2 * second[i] + rest2 * (g[i] * g[i])
        first[i] = m
        second[i] = v
        denominator = _sqrt(v) * root_scale + epsilon
        p[i] = p[i] - rate * m / denominator
        if penalised:
            p[i] = shrink(p[i], lr / denominator, l1, l2)
        note(&seen, p[i])
    return none_seen(seen)


cdef void _average(
    floating* mean, const floating* p, Py_ssize_t n, floating count
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        mean[i] = mean[i] + (p[i] - mean[i]) / count


cdef bint update(
    const UpdateSpec* spec, floating* p, const floating* g, floating* state, Py_ssize_t stride,
    Py_ssize_t n, int64_t step, double lr, double l1, double l2,
) noexcept nogil:
    """Update number ``step``, from 1, of n elements; rows of their state are ``stride`` apart.

    Returns whether all updated elements are finite.
    """
    cdef bint penalised = l1 != 0 or l2 != 0, finite
    cdef floating rate = <floating> lr, a = <floating> l1, b = <floating> l2
    cdef double beta1 = spec.beta1, beta2 = spec.beta2
    cdef floating* mean = state + spec.state_rows * stride
    if spec.kind == SGD:
        finite = _sgd(p, g, n, rate, a, b, penalised)
    elif spec.kind == MOMENTUM and spec.nesterov:
        # Each call names a constant: the loop vectorises only without the choice inside.
        finite = _momentum(
            p, g, state, n, rate, <floating> spec.momentum, <floating> (lr / (1 - spec.momentum)),
            a, b, penalised, True,
        )
    elif spec.kind == MOMENTUM:
        finite = _momentum(
            p, g, state, n, rate, <floating> spec.momentum, <floating> (lr / (1 - spec.momentum)),
            a, b, penalised, False,
        )
    elif spec.kind == ADAGRAD:
        finite = _adagrad(p, g, state, n, rate, a, b, penalised)
    else:
        finite = _adam(
            p, g, state, state + stride, n, rate, <floating> (lr / (1 - beta1 ** step)),
            <floating> (1 / sqrt(1 - beta2 ** step)), <floating> spec.epsilon,
            <floating> beta1, <floating> (1 - beta1), <floating> beta2, <floating> (1 - beta2),
            a, b, penalised,
        )
    if spec.averaged_from >= 0:
        if step <= spec.averaged_from + 1:
            memcpy(mean, p, n * sizeof(floating))
        else:
            _average(mean, p, n, <floating> (step - spec.averaged_from))
    return finite


cdef class UpdateKernel:
    """An optimizer by name, for arrays here and for other kernels through `update`."""

    def __init__(
        self, str name, *, double momentum=0.0, bint nesterov=False, double beta1=0.9,
        double beta2=0.999, double epsilon=1e-8, bint lazy=False,
    ):
        if name not in KINDS:
            raise ValueError(f"there is no optimizer {name!r}, only {sorted(KINDS)}")
        self.name = name
        self.spec.kind = KINDS[name]
        self.spec.momentum = momentum
        self.spec.nesterov = nesterov
        self.spec.beta1 = beta1
        self.spec.beta2 = beta2
        self.spec.epsilon = epsilon
        self.spec.state_rows = STATE_ROWS[self.spec.kind]
        self.spec.averaged_from = -1
        self.lazy = lazy or self.spec.kind != ADAM

    def averaged(self, int64_t start):
        """The same with a running mean of updates after the first ``start``, in one more row."""
        cdef UpdateKernel kernel = UpdateKernel(self.name)
        kernel.spec = self.spec
        kernel.spec.averaged_from = start
        kernel.lazy = False
        return kernel

    def update(
        self, floating[::1] params, const floating[::1] grad, floating[:, :] state, *,
        int64_t step, double lr, double l1=0.0, double l2=0.0,
    ):
        """Apply update ``step``, from 1, in place; True if all updated params are finite."""
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
