"""Weighted sums of losses, and their derivatives with respect to the raw model output.

Each loss has a formula for one element. A single loop serves all losses, and the compiler
specialises it for each. To add a loss, add a name, a formula and a line in `evaluate`. Elements are
computed in the arrays' own type, and losses are summed in double.
"""
from cython cimport floating
from libc.math cimport log, logf

from dps._kernels.checks cimport DPS_DEBUG, same_length

cdef extern from "logistic.h" nogil:
    void dps_exp_float(float* x, Py_ssize_t n)
    void dps_exp_double(double* x, Py_ssize_t n)
    void dps_log_loss_float(
        const float* y, const float* raw, float* loss, float* slope, Py_ssize_t n)
    void dps_log_loss_double(
        const double* y, const double* raw, double* loss, double* slope, Py_ssize_t n)

cdef enum:
    BLOCK = 256     # elements of the logistic loss that are computed together
    LANES = 8  # partial sums of losses
    SQUARED
    LOG
    HINGE
    SQUARED_HINGE
    MODIFIED_HUBER
    HUBER
    EPSILON_INSENSITIVE
    QUANTILE
    POISSON
    GAMMA
    SOFTMAX

# Losses with kinks, which a width rounds.
cdef frozenset KINKED = frozenset(["hinge", "epsilon_insensitive", "quantile"])

cdef dict KINDS = {
    "squared": SQUARED,
    "log": LOG,
    "hinge": HINGE,
    "squared_hinge": SQUARED_HINGE,
    "modified_huber": MODIFIED_HUBER,
    "huber": HUBER,
    "epsilon_insensitive": EPSILON_INSENSITIVE,
    "quantile": QUANTILE,
    "poisson": POISSON,
    "gamma": GAMMA,
    "softmax": SOFTMAX,
}


cdef inline floating _log(floating x) noexcept nogil:
    return logf(x) if floating is float else log(x)


cdef inline floating _element(
    int kind, floating y, floating raw, floating epsilon, floating* derivative
) noexcept nogil:
    cdef floating z, half = 0.5
    if kind == SQUARED:
        z = raw - y
        derivative[0] = z
        return half * z * z
    if kind == HINGE:
        z = 1 - y * raw
        derivative[0] = -y if z > 0 else 0
        return z if not z <= 0 else 0
    if kind == SQUARED_HINGE:
        z = 1 - y * raw
        z = z if not z <= 0 else 0
        derivative[0] = -2 * y * z
        return z * z
    if kind == MODIFIED_HUBER:
        z = y * raw
        if z >= 1:
            derivative[0] = 0
            return 0
        if z < -1:
            derivative[0] = -4 * y
            return -4 * z
        derivative[0] = -2 * y * (1 - z)
        return (1 - z) * (1 - z)
    z = raw - y
    if kind == QUANTILE:
        if z > 0:
            derivative[0] = 1 - epsilon
            return (1 - epsilon) * z
        derivative[0] = -epsilon if z < 0 else z
        return -epsilon * z
    if kind == HUBER:
        if z > epsilon:
            derivative[0] = epsilon
            return epsilon * z - half * epsilon * epsilon
        if z < -epsilon:
            derivative[0] = -epsilon
            return -epsilon * z - half * epsilon * epsilon
        derivative[0] = z
        return half * z * z
    if z > epsilon:
        derivative[0] = 1
        return z - epsilon
    if z < -epsilon:
        derivative[0] = -1
        return -z - epsilon
    derivative[0] = z - z  # zero, and NaN for NaN
    return z - z


cdef inline double _loop(
    int kind, const floating* y, const floating* raw, const floating* weight, floating* out,
    Py_ssize_t n, Py_ssize_t k, bint codes, floating epsilon,
) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef double total = 0
    cdef floating derivative = 0, target, w = 1
    for i in range(n):
        if weight is not NULL:
            w = weight[i]
        for j in range(k):
            if codes:
                target = 1 if y[i] == j else -1
            else:
                target = y[i * k + j]
            total += <double> (w * _element(kind, target, raw[i * k + j], epsilon, &derivative))
            out[i * k + j] = w * derivative
    return total


cdef inline floating _rounded(
    floating z, floating width, bint gap, floating* slope
) noexcept nogil:
    """``max(z, 0)`` with a parabola of a given width in place of the kink.

    Or the ``gap`` between ``max(z, 0)`` itself and the line through zero of that slope, which lies
    below it everywhere.
    """
    cdef floating half = 0.5, t = z / width + half
    if t <= 0:
        slope[0] = 0
        return 0
    if t >= 1:
        slope[0] = 1
        return 0 if gap else z
    slope[0] = t
    if gap:
        return (z if z > 0 else 0) - t * z
    return half * width * t * t


cdef double _rounded_loop(
    LossSpec loss, const floating* y, const floating* raw, const floating* weight, floating* out,
    Py_ssize_t n, Py_ssize_t k, bint codes,
) noexcept nogil:
    """As `_loop`, of a loss whose kinks are rounded."""
    cdef Py_ssize_t i, j
    cdef double total = 0
    cdef floating epsilon = <floating> loss.epsilon, width = <floating> loss.width
    cdef floating value, target, z, up = 0, down = 0, w = 1
    for i in range(n):
        if weight is not NULL:
            w = weight[i]
        for j in range(k):
            if codes:
                target = 1 if y[i] == j else -1
            else:
                target = y[i * k + j]
            z = raw[i * k + j]
            if loss.kind == HINGE:
                value = _rounded(1 - target * z, width, loss.gap, &up)
                out[i * k + j] = w * (-target * up)
            elif loss.kind == QUANTILE:
                z -= target
                value = _rounded(z, width, loss.gap, &up)
                if not loss.gap:
                    value -= epsilon * z
                out[i * k + j] = w * (up - epsilon)
            else:
                z -= target
                value = _rounded(z - epsilon, width, loss.gap, &up)
                value += _rounded(-z - epsilon, width, loss.gap, &down)
                out[i * k + j] = w * (up - down)
            total += <double> (w * value)
    return total


cdef double _sum(const floating* x, Py_ssize_t n) noexcept nogil:
    """Sum in a fixed number of partial sums, since a single one would wait for each addition."""
    cdef double lane[LANES]
    cdef double total = 0
    cdef Py_ssize_t i, j, whole = n - n % LANES
    for j in range(LANES):
        lane[j] = 0
    for i from 0 <= i < whole by LANES:
        for j in range(LANES):
            lane[j] += <double> x[i + j]
    for j in range(LANES):
        total += lane[j]
    for i in range(whole, n):
        total += <double> x[i]
    return total


cdef void _weigh(
    const floating* weight, Py_ssize_t first, Py_ssize_t k, floating* loss, floating* slope,
    Py_ssize_t count,
) noexcept nogil:
    """Multiply losses and slopes of elements from number ``first`` on by their rows' weights."""
    cdef floating w
    cdef Py_ssize_t i
    if weight is not NULL:
        for i in range(count):
            w = weight[(first + i) // k]
            slope[i] = w * slope[i]
            loss[i] = w * loss[i]


cdef double _log_loop(
    const floating* y, const floating* raw, const floating* weight, floating* out,
    Py_ssize_t n, Py_ssize_t k, bint codes,
) noexcept nogil:
    cdef Py_ssize_t first, count, i, size = n * k
    cdef floating loss[BLOCK]
    cdef floating target[BLOCK]
    cdef const floating* wanted
    cdef double total = 0
    for first from 0 <= first < size by BLOCK:
        count = size - first if size - first < BLOCK else BLOCK
        wanted = y + first
        if codes:
            for i in range(count):
                target[i] = 1 if y[(first + i) // k] == (first + i) % k else -1
            wanted = target
        if floating is float:
            dps_log_loss_float(wanted, raw + first, loss, out + first, count)
        else:
            dps_log_loss_double(wanted, raw + first, loss, out + first, count)
        _weigh(weight, first, k, loss, out + first, count)
        total += _sum(loss, count)
    return total


cdef double _exp_loop(
    int kind, const floating* y, const floating* raw, const floating* weight, floating* out,
    Py_ssize_t n, Py_ssize_t k, floating unit,
) noexcept nogil:
    """Losses of exp(raw), with exponents that are not positive, for the same bits everywhere.

    The logarithm of the unit by which y was divided is added to raw outputs, except in the
    exponent.
    """
    cdef Py_ssize_t first, count, i, size = n * k
    cdef floating loss[BLOCK]
    cdef floating small[BLOCK]
    cdef double total = 0
    cdef floating x, large
    for first from 0 <= first < size by BLOCK:
        count = size - first if size - first < BLOCK else BLOCK
        for i in range(count):
            x = raw[first + i]
            small[i] = -x if x > 0 else x
        if floating is float:
            dps_exp_float(small, count)
        else:
            dps_exp_double(small, count)
        for i in range(count):
            x = raw[first + i]
            large = 1 / small[i]
            if kind == POISSON:
                large = large if x > 0 else small[i]
                loss[i] = large - y[first + i] * (x + unit)
                out[first + i] = large - y[first + i]
            else:
                large = small[i] if x > 0 else large
                loss[i] = x + unit + y[first + i] * large
                out[first + i] = 1 - y[first + i] * large
        _weigh(weight, first, k, loss, out + first, count)
        total += _sum(loss, count)
    return total


cdef double _softmax(
    const floating* codes, const floating* raw, const floating* weight, floating* out,
    Py_ssize_t n, Py_ssize_t k,
) noexcept nogil:
    cdef Py_ssize_t i, j, c
    cdef double total = 0
    cdef floating largest, partition, w = 1
    cdef const floating* x
    cdef floating* d
    for i in range(n):
        x = raw + i * k
        largest = x[0]
        for j in range(1, k):
            largest = x[j] if x[j] > largest else largest
        for j in range(k):
            out[i * k + j] = x[j] - largest
        c = <Py_ssize_t> codes[i]
        if weight is not NULL:
            w = weight[i]
        total -= <double> (w * out[i * k + c])
    if floating is float:
        dps_exp_float(out, n * k)
    else:
        dps_exp_double(out, n * k)
    for i in range(n):
        d = out + i * k
        if weight is not NULL:
            w = weight[i]
        partition = 0
        for j in range(k):
            partition += d[j]
        total += <double> (w * _log(partition))
        for j in range(k):
            d[j] = w * (d[j] / partition)
        d[<Py_ssize_t> codes[i]] -= w
    return total


cdef double evaluate(
    LossSpec loss, const floating* y, Py_ssize_t y_width, const floating* raw,
    const floating* weight, floating* out, Py_ssize_t n, Py_ssize_t k,
) noexcept nogil:
    """Return the weighted sum over n rows of k outputs.

    One column of y for several outputs has class codes.
    """
    cdef bint codes = y_width != k
    cdef floating epsilon = <floating> loss.epsilon
    if loss.width > 0:
        return _rounded_loop(loss, y, raw, weight, out, n, k, codes)
    # Each call passes a constant, so that branches on the kind are outside the loops.
    if loss.kind == SQUARED:
        return _loop(SQUARED, y, raw, weight, out, n, k, codes, epsilon)
    if loss.kind == LOG:
        return _log_loop(y, raw, weight, out, n, k, codes)
    if loss.kind == HINGE:
        return _loop(HINGE, y, raw, weight, out, n, k, codes, epsilon)
    if loss.kind == SQUARED_HINGE:
        return _loop(SQUARED_HINGE, y, raw, weight, out, n, k, codes, epsilon)
    if loss.kind == MODIFIED_HUBER:
        return _loop(MODIFIED_HUBER, y, raw, weight, out, n, k, codes, epsilon)
    if loss.kind == HUBER:
        return _loop(HUBER, y, raw, weight, out, n, k, codes, epsilon)
    if loss.kind == EPSILON_INSENSITIVE:
        return _loop(EPSILON_INSENSITIVE, y, raw, weight, out, n, k, codes, epsilon)
    if loss.kind == QUANTILE:
        return _loop(QUANTILE, y, raw, weight, out, n, k, codes, epsilon)
    if loss.kind == POISSON:
        return _exp_loop(POISSON, y, raw, weight, out, n, k, epsilon)
    if loss.kind == GAMMA:
        return _exp_loop(GAMMA, y, raw, weight, out, n, k, epsilon)
    return _softmax(y, raw, weight, out, n, k)


cdef class LossKernel:
    """A loss by name, with its number where it has one.

    name: one of squared, log, hinge, squared_hinge, modified_huber, huber, epsilon_insensitive,
        quantile, poisson, gamma and softmax.
    epsilon: the width of the middle part of huber and epsilon_insensitive, the quantile, or of
        poisson and gamma the logarithm of a unit by which y was divided.
    width: each ``max(z, 0)`` in a loss with a kink is a parabola where ``|z| < width / 2``.
    gap: sum in place of the rounded losses by how much each loss lies above the tangent of the
        rounded one, moved down until it touches the loss. Where the mean of rounded losses and a
        convex penalty are least, the mean of that bounds how far the loss is from its own least
        value: the moved tangents are below it, and are least at the same point.
    kinked: whether the derivative jumps.
    """

    def __init__(self, str name, double epsilon=0.0, double width=0.0, bint gap=False):
        if name not in KINDS:
            raise ValueError(f"there is no loss {name!r}, only {sorted(KINDS)}")
        self.name = name
        self.kinked = name in KINKED
        if width > 0 and not self.kinked:
            raise ValueError(f"the loss {name!r} has no kink")
        self.spec.kind = KINDS[name]
        self.spec.epsilon = epsilon
        self.spec.width = width
        self.spec.gap = gap

    @property
    def epsilon(self):
        """The number of the loss."""
        return self.spec.epsilon

    def __reduce__(self):
        spec = self.spec
        return LossKernel, (self.name, spec.epsilon, spec.width, bool(spec.gap))

    def evaluate(
        self, const floating[:, ::1] y, const floating[:, ::1] raw, const floating[::1] weight,
        floating[:, ::1] out,
    ):
        """Return the weighted sum of losses and write derivatives to `out`.

        `y` is (n, k), or (n, 1) with class codes; `raw` and `out` are (n, k).
        """
        cdef Py_ssize_t i, n = raw.shape[0], k = raw.shape[1]
        cdef const floating* weights = NULL
        cdef double total
        same_length("y", y.shape[0], n)
        same_length("out", out.shape[0], n)
        same_length("rows of out", out.shape[1], k)
        if y.shape[1] != 1 and (y.shape[1] != k or self.spec.kind == SOFTMAX):
            raise ValueError(
                f"rows of y have length {y.shape[1]}, expected {k}, or 1 for class codes"
            )
        if weight is not None:
            same_length("weight", weight.shape[0], n)
        if n == 0 or k == 0:
            return 0.0
        if weight is not None:
            weights = &weight[0]
        if DPS_DEBUG and self.spec.kind == SOFTMAX:
            for i in range(n):
                if not 0 <= y[i, 0] < k:
                    raise IndexError(f"y[{i}] is {y[i, 0]}, outside [0, {k})")
        with nogil:
            total = evaluate(
                self.spec, &y[0, 0], y.shape[1], &raw[0, 0], weights, &out[0, 0], n, k
            )
        return total
