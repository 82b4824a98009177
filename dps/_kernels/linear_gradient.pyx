"""The gradient of linear models, one read of each row: forward, loss and backward block by block.

Owns how many rows a block has, from the widths alone, so that the bits do not depend on the
machine: dense ones as many as stay in the first cache, CSR ones in the second. Rows that come next
are asked for meanwhile. Dense ones are asked for evenly, half of them by the forward and half by
the backward product: else the memory is idle during one of these and limits the other. With AVX2 it
is done otherwise where dense rows are wide or shuffled, or CSR rows lie in order, see
dense_template.h and sparse.h.
"""
from cython cimport floating
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

import numpy as np

from dps._kernels.checks cimport index_t, same_length
from dps._kernels.gather cimport fill_rows
from dps._kernels.linear cimport (
    add_columns, add_unpadded, backward, backward_csr, forward, forward_csr, pad, padded_outputs
)
from dps._kernels.losses cimport LossKernel, LossSpec, evaluate
from dps._kernels.prefetch cimport dps_prefetch
from dps._kernels.rows cimport (
    BYTES, COLUMNS, CSR, CSR_WIDE, DENSE, BlockRows, Gradient, KeyedRows, Rows
)

cdef enum:
    NEAR = 20 * 1024        # bytes of X in a dense block
    DISTANCE = 2  # dense blocks between the current one and the rows that are prefetched
    CACHED = 192 * 1024  # bytes of X in a CSR block, or in rows that are copied side by side
    MOST = 512  # largest number of rows of a block
    PICKED = 128  # CSR rows of a block in a shuffled order, in which they are scattered
    GROUP = 8  # rows that are summed together
    LANES = 16  # slopes that are computed together


cdef struct Linear:
    Py_ssize_t f
    Py_ssize_t k
    bint intercept
    LossSpec loss
    Py_ssize_t block        # rows of a dense block
    Py_ssize_t laid  # rows of x
    char* raw               # (MOST, k)
    char* slope             # (MOST, k)
    char* y                 # (MOST, k)
    char* weight            # (MOST,)
    char* x  # (laid, f) for rows that are copied
    char* coef  # (f, padded outputs) for several outputs
    char* grad              # the same
    # Number of columns with a centre other than zero; the intercept is the raw output at the
    # centre.
    Py_ssize_t away
    const int64_t* columns  # (away,)
    const double* centre    # (away,)
    char* bias              # (k,), the intercept at zero
    char* slopes            # (k,), its gradient
    const double* inverse  # (f,) one over the features' scale; NULL: one
    char* plain  # (f, k) coefficients of unscaled features
    char* sums  # (f, k) their gradient
    bint left  # whether `plain` and `sums` have values of the current batch
    bint once  # whether scaling is done once per batch, or per block


cdef inline void _pick(
    const floating* source, const int64_t* order, floating* out, Py_ssize_t n, Py_ssize_t width,
    Py_ssize_t n_ahead,
) noexcept nogil:
    """out = rows order[0..n] of a table; the n_ahead rows after them are prefetched."""
    cdef Py_ssize_t i, c
    for i in range(n):
        if i < n_ahead:
            dps_prefetch(source + order[n + i] * width)
        for c in range(width):
            out[i * width + c] = source[order[i] * width + c]


cdef void _lay(
    const Linear* model, const Rows* rows, const int64_t* picks, Py_ssize_t at, Py_ssize_t n
) noexcept nogil:
    """Copy n rows side by side, from ``picks`` or from row ``at`` on."""
    cdef Py_ssize_t i, row, width = model.f * (4 if rows.single else 8)
    if rows.kind == COLUMNS:
        if rows.single:
            fill_rows(rows.columns, model.f, picks, at, n, <float*> model.x)
        else:
            fill_rows(rows.columns, model.f, picks, at, n, <double*> model.x)
        return
    for i in range(n):
        row = picks[i] if picks is not NULL else at + i
        memcpy(model.x + i * width, rows.values + row * rows.stride, width)


cdef double _block(
    const Linear* model, const Rows* rows, const int64_t* picks, Py_ssize_t at, Py_ssize_t first,
    Py_ssize_t n, Py_ssize_t n_ahead, const floating* laid, Py_ssize_t n_laid,
    const Rows* keyed, const floating* coef, const floating* bias, floating* grad,
    floating* grad_bias,
) noexcept nogil:
    """n rows from ``picks`` or from row ``at``; ``first`` is their place in the batch.

    They are the first of ``n_laid`` that have been laid side by side, unless that is NULL; or
    number ``first`` and so on of ``keyed``.
    """
    cdef Py_ssize_t f = model.f, k = model.k, stride = rows.stride, target
    cdef Py_ssize_t ahead = DISTANCE * n, reach = n + n_ahead
    cdef floating* raw = <floating*> model.raw
    cdef floating* slope = <floating*> model.slope
    cdef const floating* x = <const floating*> rows.values
    cdef const floating* y = <const floating*> rows.y
    cdef const floating* weight = <const floating*> rows.weight
    cdef const int64_t* order = picks
    cdef double loss
    if keyed is not NULL:
        forward_csr(
            <const floating*> keyed.values, <const int*> keyed.indices,
            <const int*> keyed.indptr + first, NULL, coef, bias, raw, n, k,
        )
    elif rows.kind == CSR:
        forward_csr(
            x, <const int*> rows.indices, <const int*> rows.indptr + at, order, coef, bias, raw,
            n, k,
        )
    elif rows.kind == CSR_WIDE:
        forward_csr(
            x, <const int64_t*> rows.indices, <const int64_t*> rows.indptr + at, order, coef, bias,
            raw, n, k,
        )
    else:
        if laid is NULL:
            x += at * stride
        else:
            x = laid
            stride = f
            order = NULL
            reach = n_laid
        forward(x, stride, order, coef, bias, raw, n, f, k, ahead, reach)

    if picks is not NULL and not rows.picked:
        _pick(y, picks, <floating*> model.y, n, rows.y_width, n_ahead)
        y = <const floating*> model.y
        if weight is not NULL:
            _pick(weight, picks, <floating*> model.weight, n, 1, n_ahead)
            weight = <const floating*> model.weight
    else:
        target = first if picks is not NULL else at
        y += target * rows.y_width
        if weight is not NULL:
            weight += target
    loss = evaluate(model.loss, y, rows.y_width, raw, weight, slope, n, k)

    if keyed is not NULL:
        backward_csr(
            <const floating*> keyed.values, <const int*> keyed.indices,
            <const int*> keyed.indptr + first, NULL, slope, grad, n, k, 0,
        )
    elif rows.kind == CSR:
        backward_csr(
            x, <const int*> rows.indices, <const int*> rows.indptr + at, order, slope, grad, n, k,
            n_ahead,
        )
    elif rows.kind == CSR_WIDE:
        backward_csr(
            x, <const int64_t*> rows.indices, <const int64_t*> rows.indptr + at, order, slope,
            grad, n, k, n_ahead,
        )
    else:
        backward(x, stride, order, slope, grad, n, f, k, ahead + (n + 1) // 2, reach)
    if grad_bias is not NULL:
        add_columns(slope, grad_bias, n, k)
    return loss


cdef Py_ssize_t _stored(const Rows* rows, Py_ssize_t at, Py_ssize_t n) noexcept nogil:
    """Return the number of values of n CSR rows from ``at`` on."""
    if rows.kind == CSR:
        return (<const int*> rows.indptr)[at + n] - (<const int*> rows.indptr)[at]
    return (<const int64_t*> rows.indptr)[at + n] - (<const int64_t*> rows.indptr)[at]


cdef void _leave_scale(
    const Linear* model, const floating* params, floating* coef, floating* sums
) noexcept nogil:
    """coef = the coefficients of unscaled features; sums = 0, their gradient."""
    cdef Py_ssize_t j, c, k = model.k
    for j in range(model.f):
        for c in range(k):
            coef[j * k + c] = <floating> (model.inverse[j] * params[j * k + c])
            sums[j * k + c] = 0


cdef void _scale_back(const Linear* model, const floating* sums, floating* out) noexcept nogil:
    """Add the gradient of coefficients of unscaled features as one of scaled features."""
    cdef Py_ssize_t j, c, k = model.k
    for j in range(model.f):
        for c in range(k):
            out[j * k + c] += <floating> (model.inverse[j] * sums[j * k + c])


cdef void _scale_touched(
    const Linear* model, const index_t* indices, const index_t* indptr, const int64_t* order,
    Py_ssize_t start, Py_ssize_t m, floating* values,
) noexcept nogil:
    """Scale the values of rows that have been copied side by side."""
    cdef Py_ssize_t i, row, p, at = 0
    for i in range(start, start + m):
        row = order[i] if order is not NULL else i
        for p in range(indptr[row], indptr[row + 1]):
            values[at] = <floating> (values[at] * model.inverse[indices[p]])
            at += 1


cdef void _leave_centre(
    const Linear* model, const floating* coef, const floating* intercept, floating* bias
) noexcept nogil:
    """bias = the intercept at zero, from that at the centre."""
    cdef Py_ssize_t k = model.k, j, c
    cdef double at_centre
    for c in range(k):
        at_centre = 0
        for j in range(model.away):
            at_centre += model.centre[j] * coef[model.columns[j] * k + c]
        bias[c] = <floating> (intercept[c] - at_centre)


cdef void _come_back(
    const Linear* model, const floating* slopes, floating* grad, floating* grad_bias
) noexcept nogil:
    """Add the gradient of the intercept at zero as one at the centre."""
    cdef Py_ssize_t k = model.k, j, c
    for c in range(k):
        grad_bias[c] += slopes[c]
    for j in range(model.away):
        for c in range(k):
            grad[model.columns[j] * k + c] -= <floating> (model.centre[j] * slopes[c])


cdef double _add(
    Linear* model, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
    Py_ssize_t ahead, const Rows* keyed, const floating* params, floating* out,
) noexcept nogil:
    cdef Py_ssize_t f = model.f, k = model.k, first = 0, n, at, size = model.block
    # An intercept is the first key that a batch touches.
    cdef Py_ssize_t shift = f * k if keyed is NULL else 0
    cdef const floating* coef = params
    cdef const floating* bias = params + shift if model.intercept else NULL
    cdef floating* grad = out
    cdef floating* grad_bias = out + shift if model.intercept else NULL
    cdef floating* plain_grad = out  # gradient of coefficients of unscaled features
    cdef const int64_t* picks = NULL
    cdef bint sparse = rows.kind == CSR or rows.kind == CSR_WIDE
    cdef bint in_place = sparse or rows.kind == DENSE
    cdef const floating* laid = NULL
    cdef const floating* plain
    cdef Py_ssize_t done = 0, count = 0
    cdef double loss = 0
    if model.inverse is not NULL and keyed is NULL:  # keyed rows are scaled themselves
        plain_grad = grad = <floating*> model.sums
        if not model.left:
            _leave_scale(model, params, <floating*> model.plain, grad)
            model.left = True
        coef = <const floating*> model.plain
    plain = coef
    if model.away:
        _leave_centre(model, coef, bias, <floating*> model.bias)
        bias = <const floating*> model.bias
        grad_bias = <floating*> model.slopes
        memset(grad_bias, 0, k * sizeof(floating))
    if sparse:
        size = MOST if order is NULL else PICKED
    elif k > 1:
        pad(plain, <floating*> model.coef, f, k)
        coef = <const floating*> model.coef
        grad = <floating*> model.grad
        memset(grad, 0, f * padded_outputs(k) * sizeof(floating))
    while first < m:
        n = min(size, m - first)
        at = start + first
        if order is not NULL:
            picks = order + at
            at = 0
        elif sparse:
            while n > GROUP and _stored(rows, at, n) * <Py_ssize_t> sizeof(floating) > CACHED:
                n //= 2
        if not in_place:
            done = first % model.laid
            if done == 0:
                count = min(model.laid, m - first)
                _lay(model, rows, picks, at, count)
            laid = <const floating*> model.x + done * f
        first += n
        loss += _block(
            model, rows, picks, at, first - n, n, m + ahead - first, laid, count - done, keyed,
            coef, bias, grad, grad_bias,
        )
    if k > 1 and not sparse:
        add_unpadded(grad, plain_grad, f, k)
    if model.away:
        _come_back(model, grad_bias, plain_grad, out + shift)
    if model.left and not model.once:
        _scale_back(model, plain_grad, out)
        model.left = False
    return loss


cdef void _raw(
    const Linear* model, const Rows* keyed, const floating* params, floating* out, Py_ssize_t m
) noexcept nogil:
    """Compute raw outputs of rows by keys; the first key is the intercept."""
    forward_csr(
        <const floating*> keyed.values, <const int*> keyed.indices, <const int*> keyed.indptr,
        NULL, params, params if model.intercept else NULL, out, m, model.k,
    )


cdef class LinearGradient(Gradient):
    """Gradient of ``X @ coef + intercept`` under a loss; params are (f, k) coefficients, then (k,).

    These are of ``(X - centre) / scale``; rows are read as they are.
    """

    cdef Linear model
    cdef tuple _arrays      # keep the room alive

    def __cinit__(
        self, Py_ssize_t n_features, Py_ssize_t n_outputs, LossKernel loss, bint intercept,
        bint single, centre=None, scale=None,
    ):
        cdef Linear* model = &self.model
        cdef Py_ssize_t f = n_features, k = n_outputs, itemsize = 4 if single else 8
        cdef Py_ssize_t width = max(1, f * itemsize)
        cdef Py_ssize_t fewest = LANES if LANES * width <= CACHED else GROUP
        self._arrays = ()
        self.size = (f + intercept) * k
        self.single = single
        self.keyed, self.key_width = centre is None, k
        self.first_always, self.n_always = f, intercept  # each row has one
        model.f = f
        model.k = k
        model.intercept = intercept
        model.loss = loss.spec
        model.block = min(MOST, max(fewest, NEAR // width // LANES * LANES))
        model.laid = max(1, CACHED // width // model.block) * model.block
        model.raw = self._room(MOST * k)
        model.slope = self._room(MOST * k)
        model.y = self._room(MOST * k)
        model.weight = self._room(MOST)
        if k > 1:
            model.coef = self._room(f * padded_outputs(k))
            model.grad = self._room(f * padded_outputs(k))
        if centre is not None:
            self._keep_centre(np.array(centre, np.float64))
        if scale is not None:
            same_length("scale", scale.shape[0], f)
            inverse = 1 / np.asarray(scale, np.float64)
            self._arrays += (inverse,)
            model.inverse = <const double*> <uintptr_t> inverse.ctypes.data
            model.plain = self._room(f * k)
            model.sums = self._room(f * k)

    cdef int _keep_centre(self, centre) except -1:
        same_length("centre", centre.shape[0], self.model.f)
        if not self.model.intercept:
            raise ValueError("only an intercept can be at a centre")
        columns = np.flatnonzero(centre).astype(np.int64)
        centre = centre[columns]
        self._arrays += (columns, centre)
        self.model.away = columns.shape[0]
        self.model.columns = <const int64_t*> <uintptr_t> columns.ctypes.data
        self.model.centre = <const double*> <uintptr_t> centre.ctypes.data
        self.model.bias = self._room(self.model.k)
        self.model.slopes = self._room(self.model.k)
        return 0

    cdef char* _room(self, Py_ssize_t elements) except NULL:
        array = np.zeros(max(1, elements), "f4" if self.single else "f8")
        self._arrays += (array,)
        return <char*> <uintptr_t> array.ctypes.data

    cdef void raw_touched(
        self, KeyedRows keys, Py_ssize_t m, const void* params, void* out
    ) noexcept nogil:
        cdef Rows rows = keys.take(m)
        if self.single:
            _raw(&self.model, &rows, <const float*> params, <float*> out, m)
        else:
            _raw(&self.model, &rows, <const double*> params, <double*> out, m)

    cdef void round(self, double width, bint gap) noexcept nogil:
        self.model.loss.width, self.model.loss.gap = width, gap

    cdef int check(self, BlockRows block) except -1:
        Gradient.check(self, block)
        same_length("rows of X", block.rows.n_features, self.model.f)
        if block.rows.y_width != 1:
            same_length("rows of y", block.rows.y_width, self.model.k)
        if block.rows.kind in (BYTES, COLUMNS) and self.model.x is NULL:
            self.model.x = self._room(self.model.laid * self.model.f)
        return 0

    cdef void begin(self, uint64_t key) noexcept nogil:
        self.model.left, self.model.once = False, self.in_passes

    cdef double finish(self, const void* params, void* out) noexcept nogil:
        if self.model.left and self.single:
            _scale_back(&self.model, <const float*> self.model.sums, <float*> out)
        elif self.model.left:
            _scale_back(&self.model, <const double*> self.model.sums, <double*> out)
        self.model.left = False
        return 0

    cdef double add(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, const void* params, void* out,
    ) noexcept nogil:
        if self.single:
            return _add(
                &self.model, rows, order, start, m, ahead, NULL, <const float*> params, <float*> out
            )
        return _add(
            &self.model, rows, order, start, m, ahead, NULL, <const double*> params, <double*> out
        )

    cdef int touch(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, KeyedRows keys,
    ) except -1 nogil:
        cdef Py_ssize_t before = keys.n_stored
        Gradient.touch(self, rows, order, start, m, ahead, keys)
        if self.model.inverse is NULL:
            return 0
        if rows.kind == CSR and self.single:
            _scale_touched(
                &self.model, <const int*> rows.indices, <const int*> rows.indptr, order, start, m,
                <float*> keys.values.at + before,
            )
        elif rows.kind == CSR:
            _scale_touched(
                &self.model, <const int*> rows.indices, <const int*> rows.indptr, order, start, m,
                <double*> keys.values.at + before,
            )
        elif self.single:
            _scale_touched(
                &self.model, <const int64_t*> rows.indices, <const int64_t*> rows.indptr, order,
                start, m, <float*> keys.values.at + before,
            )
        else:
            _scale_touched(
                &self.model, <const int64_t*> rows.indices, <const int64_t*> rows.indptr, order,
                start, m, <double*> keys.values.at + before,
            )
        return 0

    cdef double add_touched(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, KeyedRows keys, const void* params, void* out,
    ) noexcept nogil:
        cdef Rows keyed = keys.take(m)
        if self.single:
            return _add(
                &self.model, rows, order, start, m, ahead, &keyed, <const float*> params,
                <float*> out,
            )
        return _add(
            &self.model, rows, order, start, m, ahead, &keyed, <const double*> params,
            <double*> out,
        )
