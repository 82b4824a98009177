"""Element-wise optimizer updates with their proximal step, in place, on flat vectors.

Owns the arithmetic of one update. It must not know shards, modes or who holds the vectors.
All arithmetic is IEEE and in the arrays' own type, element by element: a vector that is updated in
slices, or with other SIMD registers, ends with the same bits. The proximal step of an element with
step size s is ``p = soft(p, s * l1) / (1 + s * l2)``; without penalties the bare update runs.
"""
from cython cimport floating
from libc.math cimport copysign, copysignf, fabs, fabsf, sqrt, sqrtf

from dps._kernels.checks cimport NotFinite, none_seen, note, same_length


cdef inline floating _sqrt(floating x) noexcept nogil:
    return sqrtf(x) if floating is float else sqrt(x)


cdef inline floating _shrink(floating p, floating s, floating l1, floating l2) noexcept nogil:
    """The proximal operator of s * (l1 |p| + l2 p^2 / 2); a NaN stays NaN."""
    cdef floating size = (fabsf(p) if floating is float else fabs(p)) - s * l1
    size = 0 if size <= 0 else size
    size = copysignf(size, p) if floating is float else copysign(size, p)
    return size / (1 + s * l2)


cdef bint _sgd(
    floating* p, const floating* g, Py_ssize_t n,
    floating lr, floating l1, floating l2, bint penalised,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef NotFinite seen = NotFinite(0, 0)
    for i in range(n):
        p[i] = p[i] - lr * g[i]
        if penalised:
            p[i] = _shrink(p[i], lr, l1, l2)
        note(&seen, p[i])
    return none_seen(seen)


def sgd(
    floating[::1] params, const floating[::1] grad,
    double lr, double l1=0.0, double l2=0.0,
):
    """params -= lr * grad, then the proximal step with s = lr; True if all stay finite."""
    cdef Py_ssize_t n = params.shape[0]
    cdef bint finite
    same_length("grad", grad.shape[0], n)
    if n == 0:
        return True
    with nogil:
        finite = _sgd(
            &params[0], &grad[0], n,
            <floating> lr, <floating> l1, <floating> l2, l1 != 0 or l2 != 0,
        )
    return finite


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
            p[i] = _shrink(p[i], s, l1, l2)
        note(&seen, p[i])
    return none_seen(seen)


def momentum(
    floating[::1] params, const floating[::1] grad, floating[::1] velocity,
    double lr, double mu, bint nesterov=False, double l1=0.0, double l2=0.0,
):
    """velocity = mu * velocity + grad; params -= lr * velocity, or with Nesterov lr * (grad +
    mu * velocity); then the proximal step with s = lr / (1 - mu). True if all stay finite."""
    cdef Py_ssize_t n = params.shape[0]
    cdef bint finite
    same_length("grad", grad.shape[0], n)
    same_length("velocity", velocity.shape[0], n)
    if n == 0:
        return True
    with nogil:
        # Each call names a constant: the loop vectorises only without the choice inside.
        if nesterov:
            finite = _momentum(
                &params[0], &grad[0], &velocity[0], n, <floating> lr, <floating> mu,
                <floating> (lr / (1 - mu)), <floating> l1, <floating> l2, l1 != 0 or l2 != 0, True,
            )
        else:
            finite = _momentum(
                &params[0], &grad[0], &velocity[0], n, <floating> lr, <floating> mu,
                <floating> (lr / (1 - mu)), <floating> l1, <floating> l2, l1 != 0 or l2 != 0, False,
            )
    return finite


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
            p[i] = _shrink(p[i], lr / root, l1, l2)
        note(&seen, p[i])
    return none_seen(seen)


def adagrad(
    floating[::1] params, const floating[::1] grad, floating[::1] accumulator,
    double lr, double l1=0.0, double l2=0.0,
):
    """accumulator += grad^2; params -= lr * grad / sqrt(accumulator); then the proximal step
    with s = lr / sqrt(accumulator). True if all stay finite."""
    cdef Py_ssize_t n = params.shape[0]
    cdef bint finite
    same_length("grad", grad.shape[0], n)
    same_length("accumulator", accumulator.shape[0], n)
    if n == 0:
        return True
    with nogil:
        finite = _adagrad(
            &params[0], &grad[0], &accumulator[0], n,
            <floating> lr, <floating> l1, <floating> l2, l1 != 0 or l2 != 0,
        )
    return finite


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
            p[i] = _shrink(p[i], lr / denominator, l1, l2)
        note(&seen, p[i])
    return none_seen(seen)


def adam(
    floating[::1] params, const floating[::1] grad, floating[::1] first, floating[::1] second,
    long step, double lr, double beta1=0.9, double beta2=0.999, double epsilon=1e-8,
    double l1=0.0, double l2=0.0,
):
    """Update ``step`` (from 1) of Algorithm 1 of Kingma and Ba, epsilon as in PyTorch; then the
    proximal step with s = lr / (sqrt(second / (1 - beta2^step)) + epsilon). True if all finite."""
    cdef Py_ssize_t n = params.shape[0]
    cdef bint finite
    same_length("grad", grad.shape[0], n)
    same_length("first", first.shape[0], n)
    same_length("second", second.shape[0], n)
    if step < 1:
        raise ValueError(f"step counts updates from 1, got {step}")
    if n == 0:
        return True
    with nogil:
        finite = _adam(
            &params[0], &grad[0], &first[0], &second[0], n,
            <floating> lr, <floating> (lr / (1 - beta1 ** step)),
            <floating> (1 / sqrt(1 - beta2 ** step)), <floating> epsilon,
            <floating> beta1, <floating> (1 - beta1), <floating> beta2, <floating> (1 - beta2),
            <floating> l1, <floating> l2, l1 != 0 or l2 != 0,
        )
    return finite


cdef void _average(
    floating* mean, const floating* p, Py_ssize_t n, floating count
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        mean[i] = mean[i] + (p[i] - mean[i]) / count


def average(floating[::1] mean, const floating[::1] params, double count):
    """mean += (params - mean) / count."""
    cdef Py_ssize_t n = mean.shape[0]
    same_length("params", params.shape[0], n)
    if n:
        with nogil:
            _average(&mean[0], &params[0], n, <floating> count)
