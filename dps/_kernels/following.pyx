"""Exact updates of coordinates that missed updates without a gradient.

As if each of them had been applied with a gradient of zero. With step sizes s_1 ... s_k, the k
proximal steps that a coordinate has missed are one: ::

    p = soft(p, l1 * sum(s))                                  without l2
    p = soft((|p| + l1 / l2) * F - l1 / l2), 1 / F = prod(1 + s * l2)

since ``(u - s l1) / (1 + s l2) + l1 / l2`` is ``(u + l1 / l2) / (1 + s l2)``. SGD and momentum have
one s for all coordinates, whose products are tables; those of Adagrad, scaled or not, have a factor
of the coordinate's own: a power where rates are constant, else the exponential of a series in the
sums of the rates' powers, or a product over the steps missed where each shrinks by much. Momentum
goes on moving a coordinate: it is replayed until that is below rounding, a number of steps that
depends on the momentum alone. All arithmetic is IEEE.

For example, SGD with rates 0.5, 0.25, 0.25, l1 = 0.1 and no l2: a coordinate of 1.0 that was up to
date after update 1, and is wanted after update 3, has missed 0.25 + 0.25. It is 1.0 - 0.1 * 0.5.
"""
from cython cimport floating
from libc.math cimport copysign, fabs, ldexp, sqrt
from libc.stdint cimport int64_t, uint64_t

from dps._kernels.optimizers cimport ADAGRAD, MOMENTUM, SCALED_ADAGRAD, SGD

cdef extern from "powers.h" nogil:
    void dps_powers(
        double* base, uint64_t* exponent, double* result, Py_ssize_t n, uint64_t bits)
    void dps_logs(const double* c, const double* sums, double* log, Py_ssize_t n)
    void dps_products(
        const double* c, const double* rates, Py_ssize_t steps, double* factor, Py_ssize_t n)
    void dps_exps(double* x, double* given, Py_ssize_t n)
    void dps_inverse_roots_float(const float* x, double* by, Py_ssize_t n)
    void dps_inverse_roots_double(const double* x, double* by, Py_ssize_t n)
    void dps_divide_float(float* p, const double* by, Py_ssize_t n)
    void dps_divide_double(double* p, const double* by, Py_ssize_t n)

#: Shrinkages up to which these terms suffice.
cdef double SMALL = 1.0 / 64


cdef inline floating _shrink(floating p, floating s, floating l1, floating l2) noexcept nogil:
    """The twin of DPS_SHRINK."""
    cdef floating size = <floating> fabs(p) - s * l1
    return <floating> copysign(0 if size <= 0 else size, p) / (<floating> 1 + s * l2)


cdef double _power(double base, int64_t exponent) noexcept nogil:
    cdef double result = 1
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


cdef inline double _shrunk(
    double p, double total, double factor, double l1, double l2
) noexcept nogil:
    """Do proximal steps at once whose sizes sum to ``total`` and whose decay is ``factor``."""
    cdef double size, x = total * l2
    if l1 == 0:
        return p * factor
    if x < 1e-8:  # the other formula would subtract numbers as large as l1 / l2
        size = fabs(p) * factor - total * l1 * (1 - x / 2)
    else:
        size = (fabs(p) + l1 / l2) * factor - l1 / l2
    return copysign(0 if size <= 0 else size, p)


cdef inline double _decay(const Lazy* lazy, int64_t since, int64_t now) noexcept nogil:
    # Values below the exponents of doubles are zero, also if an int could not hold the exponent.
    cdef int64_t scale = max(lazy.scales[since] - lazy.scales[now], -4096)
    return ldexp(lazy.decays[since] / lazy.decays[now], <int> scale)


cdef void _grow(
    const Lazy* lazy, const double* by, const int64_t* since, Py_ssize_t n, int64_t now,
    double* factor,
) noexcept nogil:
    """Multiply ``factor`` by 1 + rate * by * l2 for each missed step."""
    cdef double c[CHUNK]
    cdef double given[CHUNK]
    cdef double sums[SERIES]
    cdef const double* of
    cdef int64_t i
    cdef Py_ssize_t j, m, first = 0, last
    cdef bint alike
    for j in range(n):
        c[j] = by[j] * lazy.l2
    while first < n:  # coordinates that have missed the same steps
        i, last = min(since[first], now), first + 1
        while last < n and since[last] == since[first]:
            last += 1
        for m in range(SERIES):
            of = lazy.moments + m * (lazy.steps + 1)
            sums[m] = of[now] - of[i]
        dps_logs(c + first, sums, factor + first, last - first)
        first = last
    dps_exps(factor, given, n)
    first = 0
    while first < n:  # coordinates with large shrinkages
        last = first + 1
        if not c[first] * lazy.highest <= SMALL:
            alike = True
            while (
                last < n and since[last] == since[first] and not c[last] * lazy.highest <= SMALL
            ):
                alike &= c[last] == c[first]
                last += 1
            i = min(since[first], now)
            # Coordinates without any gradient so far are equal.
            dps_products(
                c + first, lazy.rates + i, now - i, factor + first, 1 if alike else last - first
            )
            for j in range(first + 1, last if alike else first):
                factor[j] = factor[first]
        first = last


cdef void _scaled(
    const Lazy* lazy, floating* p, const double* by, const int64_t* since, Py_ssize_t n,
    int64_t now,
) noexcept nogil:
    """Do proximal steps of sizes rate * by, for at most CHUNK coordinates."""
    cdef double factor[CHUNK]   # 1 / F
    cdef double grown[CHUNK]
    cdef uint64_t missed[CHUNK]
    cdef uint64_t most = 0
    cdef int64_t i
    cdef Py_ssize_t j
    for j in range(n):
        factor[j] = 1
        missed[j] = <uint64_t> max(now - since[j], 0)
        most |= missed[j]
    if lazy.l2 != 0 and lazy.constant:
        for j in range(n):
            grown[j] = 1 + lazy.rates[0] * by[j] * lazy.l2
        dps_powers(grown, missed, factor, n, most)
    elif lazy.l2 != 0:
        _grow(lazy, by, since, n, now, factor)
    if lazy.l1 == 0:
        if floating is float:
            dps_divide_float(p, factor, n)
        else:
            dps_divide_double(p, factor, n)
        return
    for j in range(n):
        i = since[j]
        if i < now:  # not 0 * by, since `by` may be infinite
            p[j] = <floating> _shrunk(
                p[j], (lazy.sums[now] - lazy.sums[i]) * by[j], 1 / factor[j], lazy.l1, lazy.l2
            )


cdef void _replay(
    const Lazy* lazy, floating* p, floating* v, int64_t since, int64_t now, bint penalised
) noexcept nogil:
    cdef floating mu = <floating> lazy.spec.momentum, q = p[0], velocity = v[0], rate, move
    cdef floating l1 = <floating> lazy.l1, l2 = <floating> lazy.l2
    cdef double rest = 1 - lazy.spec.momentum, epsilon = 6e-8 if floating is float else 1e-16
    cdef int64_t i = since
    while i < now:
        if velocity == 0 or penalised and q == 0 and fabs(velocity) * rest <= lazy.l1:
            break  # it cannot leave zero any more
        if fabs(velocity) * lazy.highest < epsilon / 4 * fabs(q) * rest:
            break  # the rest of its way is below rounding
        rate = <floating> lazy.rates[i]
        velocity = mu * velocity
        move = mu * velocity if lazy.spec.nesterov else velocity
        q = q - rate * move
        if penalised:
            q = _shrink(q, <floating> (lazy.rates[i] / rest), l1, l2)
        i += 1
    if i < now:
        velocity = <floating> (velocity * _power(lazy.spec.momentum, now - i))
        if penalised:
            q = <floating> _shrunk(
                q, (lazy.sums[now] - lazy.sums[i]) / rest, _decay(lazy, i, now), lazy.l1, lazy.l2
            )
    p[0] = q
    v[0] = velocity


cdef void follow(
    const Lazy* lazy, floating* p, floating* state, Py_ssize_t stride, const int64_t* since,
    Py_ssize_t n, int64_t now, bint penalised,
) noexcept nogil:
    """Bring at most CHUNK coordinates from step since to step now, in the tables' count."""
    cdef double by[CHUNK]
    cdef Py_ssize_t j
    cdef int64_t first
    cdef double corrected
    if not is_lagging(lazy, penalised):
        return
    penalised = penalised and (lazy.l1 != 0 or lazy.l2 != 0)
    if lazy.spec.kind == MOMENTUM:
        for j in range(n):
            _replay(lazy, p + j, state + j, min(since[j], now), now, penalised)
    elif lazy.spec.kind == SGD:
        for j in range(n):
            first = min(since[j], now)
            p[j] = <floating> _shrunk(
                p[j], lazy.sums[now] - lazy.sums[first], _decay(lazy, first, now), lazy.l1, lazy.l2
            )
    elif lazy.spec.kind == ADAGRAD:
        if floating is float:
            dps_inverse_roots_float(state, by, n)
        else:
            dps_inverse_roots_double(state, by, n)
        _scaled(lazy, p, by, since, n, now)
    elif lazy.spec.kind == SCALED_ADAGRAD:
        for j in range(n):
            by[j] = state[stride + j] / sqrt(<double> state[j])
        _scaled(lazy, p, by, since, n, now)
    else:   # Adam
        corrected = 1 / sqrt(1 - lazy.spec.beta2 ** <double> max(lazy.before + now, 1))
        for j in range(n):
            by[j] = 1 / (sqrt(<double> state[stride + j]) * corrected + lazy.spec.epsilon)
        _scaled(lazy, p, by, since, n, now)
