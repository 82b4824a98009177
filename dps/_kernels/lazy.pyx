"""Updates of the coordinates that a sparse batch touches; others are updated when needed.

``since`` has the number of each coordinate's last update, counted over the life of the parameters.
A reader first brings a coordinate up to date with `follow`. At the end of an epoch all coordinates
are flushed, so nothing is pending between epochs.

A key stands for one coordinate, or for a row of ``width`` coordinates with a common count.
"""
from cython cimport floating
from libc.math cimport frexp
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy

import numpy as np

from dps._kernels.checks cimport NotFinite, none_seen, note
from dps._kernels.following cimport CHUNK, Lazy, SERIES, follow, is_lagging
from dps._kernels.optimizers cimport UNTRAINED, UpdateKernel, update
from dps._kernels.subnormal cimport dps_no_subnormals, dps_restore

cdef extern from *:
    """
    #define dps_prefetch(p) __builtin_prefetch(p, 0, 3)
    """
    void dps_prefetch(const char* p) noexcept nogil

cdef enum:
    ROWS = 2  # largest number of rows of optimizer state
    SOON = 12  # rows that are prefetched ahead of the current one
    LINE = 64  # bytes of a cache line


cdef struct Chunk:
    Py_ssize_t n
    bint penalised


cdef Chunk _chunk(const Lazy* lazy, const int64_t* keys, Py_ssize_t n) noexcept nogil:
    """Return the keys of one run that are processed together, and whether they are penalised."""
    cdef Py_ssize_t run = 0, i = 1
    cdef int64_t first, last
    n = min(n, <Py_ssize_t> CHUNK)
    while keys[0] >= lazy.runs[3 * run + 1]:
        run += 1
    first, last = <int64_t> lazy.runs[3 * run], <int64_t> lazy.runs[3 * run + 1]
    while i < n and first <= keys[i] < last:
        i += 1
    return Chunk(i, lazy.runs[3 * run + 2] != 0)


cdef void _take(
    const Lazy* lazy, const Held* held, Py_ssize_t rows, bint lags, const int64_t* keys,
    Py_ssize_t n, floating* p, floating* state, int64_t* since,
) noexcept nogil:
    cdef const floating* params = <const floating*> held.params
    cdef const floating* row = <const floating*> held.state
    cdef Py_ssize_t j, r
    for j in range(n):
        p[j] = params[keys[j]]
    for r in range(rows):
        for j in range(n):
            state[r * CHUNK + j] = row[r * held.size + keys[j]]
    if lags:
        for j in range(n):
            since[j] = max(held.since[keys[j]] - lazy.before, 0)


cdef void _gather(
    const Lazy* lazy, const Held* held, const int64_t* keys, Py_ssize_t n, int64_t now,
    floating* out,
) noexcept nogil:
    cdef floating p[CHUNK]
    cdef floating state[ROWS * CHUNK]
    cdef int64_t since[CHUNK]
    cdef Py_ssize_t at = 0, j
    cdef bint lags
    cdef Chunk chunk
    cdef uint64_t mode = dps_no_subnormals()
    while at < n:
        chunk = _chunk(lazy, keys + at, n - at)
        lags = is_lagging(lazy, chunk.penalised)
        _take(
            lazy, held, lazy.spec.state_rows if lags else 0, lags, keys + at, chunk.n,
            p, state, since,
        )
        follow(lazy, p, state, CHUNK, since, chunk.n, now, chunk.penalised)
        for j in range(chunk.n):
            out[at + j] = p[j]
        at += chunk.n
    dps_restore(mode)


cdef bint _apply(
    const Lazy* lazy, const Held* held, const int64_t* keys, Py_ssize_t n, int64_t now,
    const floating* grad,
) noexcept nogil:
    cdef floating p[CHUNK]
    cdef floating state[ROWS * CHUNK]
    cdef int64_t since[CHUNK]
    cdef floating* params = <floating*> held.params
    cdef floating* row = <floating*> held.state
    cdef Py_ssize_t at = 0, j, r
    cdef bint finite = True, lags
    cdef Chunk chunk
    cdef uint64_t mode = dps_no_subnormals()
    while at < n:
        chunk = _chunk(lazy, keys + at, n - at)
        lags = is_lagging(lazy, chunk.penalised)
        _take(lazy, held, lazy.spec.state_rows, lags, keys + at, chunk.n, p, state, since)
        follow(lazy, p, state, CHUNK, since, chunk.n, now - 1, chunk.penalised)
        finite &= update(
            &lazy.spec, p, grad + at, state, CHUNK, chunk.n, lazy.before + now,
            lazy.rates[now - 1] / lazy.age,
            lazy.l1 if chunk.penalised else 0.0, lazy.l2 if chunk.penalised else 0.0,
        )
        for j in range(chunk.n):
            params[keys[at + j]] = p[j]
        if lags:
            for j in range(chunk.n):
                held.since[keys[at + j]] = lazy.before + now
        for r in range(lazy.spec.state_rows):
            for j in range(chunk.n):
                row[r * held.size + keys[at + j]] = state[r * CHUNK + j]
        at += chunk.n
    dps_restore(mode)
    return finite


cdef inline void _ask_for(
    const Held* held, int64_t key, Py_ssize_t itemsize, Py_ssize_t state_rows
) noexcept nogil:
    """Prefetch a row and its state."""
    cdef const char* first = held.params + key * held.width * itemsize
    cdef Py_ssize_t at = 0, r
    while at < held.width * itemsize + LINE:
        dps_prefetch(first + at)
        for r in range(state_rows):
            dps_prefetch(held.state + r * held.size * itemsize + (first - held.params) + at)
        at += LINE
    dps_prefetch(<const char*> (held.since + key))


cdef struct Span:
    Py_ssize_t start
    Py_ssize_t n
    bint penalised


cdef Span _span(const Lazy* lazy, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    """Return the first coordinates that are processed together."""
    cdef Py_ssize_t run = 0
    stop = min(stop, start + <Py_ssize_t> CHUNK)
    while start >= lazy.runs[3 * run + 1]:
        run += 1
    return Span(
        start, min(stop, <Py_ssize_t> lazy.runs[3 * run + 1]) - start, lazy.runs[3 * run + 2] != 0
    )


cdef bint _since(
    const Lazy* lazy, const Held* held, int64_t key, const Span* span, int64_t now, int64_t* since
) noexcept nogil:
    """Get the last update of a row's coordinates; True if they are behind."""
    cdef Py_ssize_t j
    if not is_lagging(lazy, span.penalised) or held.since[key] - lazy.before >= now:
        return False
    for j in range(span.n):
        since[j] = max(held.since[key] - lazy.before, 0)
    return True


cdef void _gather_rows(
    const Lazy* lazy, const Held* held, const int64_t* keys, Py_ssize_t n, int64_t now,
    floating* out,
) noexcept nogil:
    cdef const floating* params = <const floating*> held.params
    cdef const floating* row = <const floating*> held.state
    cdef floating state[ROWS * CHUNK]
    cdef int64_t since[CHUNK]
    cdef Py_ssize_t i, r, j, at, stop
    cdef Span span
    cdef uint64_t mode = dps_no_subnormals()
    for i in range(n):
        if i + SOON < n:
            _ask_for(held, keys[i + SOON], sizeof(floating), lazy.spec.state_rows)
        at, stop = keys[i] * held.width, (keys[i] + 1) * held.width
        memcpy(out, params + at, held.width * sizeof(floating))
        while at < stop:
            span = _span(lazy, at, stop)
            if _since(lazy, held, keys[i], &span, now, since):
                for r in range(lazy.spec.state_rows):
                    for j in range(span.n):
                        state[r * CHUNK + j] = row[r * held.size + at + j]
                follow(lazy, out, state, CHUNK, since, span.n, now, span.penalised)
            out += span.n
            at += span.n
    dps_restore(mode)


cdef bint _apply_rows(
    const Lazy* lazy, const Held* held, const int64_t* keys, Py_ssize_t n, int64_t now,
    const floating* grad,
) noexcept nogil:
    cdef floating* params = <floating*> held.params
    cdef floating* state = <floating*> held.state
    cdef int64_t since[CHUNK]
    cdef Py_ssize_t i, at, stop
    cdef bint finite = True
    cdef Span span
    cdef uint64_t mode = dps_no_subnormals()
    for i in range(n):
        if i + SOON < n:
            _ask_for(held, keys[i + SOON], sizeof(floating), lazy.spec.state_rows)
        at, stop = keys[i] * held.width, (keys[i] + 1) * held.width
        while at < stop:
            span = _span(lazy, at, stop)
            if _since(lazy, held, keys[i], &span, now - 1, since):
                follow(
                    lazy, params + at, state + at, held.size, since, span.n, now - 1,
                    span.penalised,
                )
            finite &= update(
                &lazy.spec, params + at, grad, state + at, held.size, span.n, lazy.before + now,
                lazy.rates[now - 1] / lazy.age, lazy.l1 if span.penalised else 0.0,
                lazy.l2 if span.penalised else 0.0,
            )
            grad += span.n
            at += span.n
        held.since[keys[i]] = lazy.before + now
    dps_restore(mode)
    return finite


cdef bint _flush(
    const Lazy* lazy, const Held* held, Py_ssize_t start, Py_ssize_t stop, int64_t now,
    floating example,
) noexcept nogil:
    cdef floating* params = <floating*> held.params
    cdef floating* state = <floating*> held.state
    cdef NotFinite seen = NotFinite(0, 0)
    cdef int64_t since[CHUNK]
    cdef Py_ssize_t i, j, a, b, n
    cdef uint64_t mode = dps_no_subnormals()
    for i in range(lazy.n_runs):
        a = max(<Py_ssize_t> lazy.runs[3 * i], start)
        b = min(<Py_ssize_t> lazy.runs[3 * i + 1], stop)
        while a < b:
            n = min(b - a, <Py_ssize_t> CHUNK)
            if held.width == 1:
                for j in range(n):
                    since[j] = max(held.since[a + j] - lazy.before, 0)
            else:
                for j in range(n):
                    since[j] = max(held.since[(a + j) // held.width] - lazy.before, 0)
            follow(
                lazy, params + a, state + a, held.size, since, n, now, lazy.runs[3 * i + 2] != 0
            )
            a += n
    for i in range(start, stop):
        note(&seen, params[i])
    for i in range(start // held.width, stop // held.width):
        held.since[i] = lazy.before + now
    dps_restore(mode)
    return none_seen(seen)


cdef inline int64_t _entry(const Lazy* lazy, int64_t now, int64_t least) noexcept nogil:
    """Return the position of an update in the tables."""
    return max(least, min(now - lazy.before, <int64_t> lazy.steps))


cdef void gather(
    const Lazy* lazy, bint single, const Held* held, const int64_t* keys, Py_ssize_t n, int64_t now,
    char* out,
) noexcept nogil:
    """Read the parameters at the keys after update ``now``, side by side."""
    cdef int64_t entry = _entry(lazy, now, 0)
    if held.width == 1 and single:
        _gather(lazy, held, keys, n, entry, <float*> out)
    elif held.width == 1:
        _gather(lazy, held, keys, n, entry, <double*> out)
    elif single:
        _gather_rows(lazy, held, keys, n, entry, <float*> out)
    else:
        _gather_rows(lazy, held, keys, n, entry, <double*> out)


cdef bint apply(
    const Lazy* lazy, bint single, const Held* held, const int64_t* keys, Py_ssize_t n, int64_t now,
    const char* grad,
) noexcept nogil:
    """Apply update ``now`` at distinct keys; True if all are finite."""
    cdef int64_t entry = _entry(lazy, now, 1)
    if held.width == 1 and single:
        return _apply(lazy, held, keys, n, entry, <const float*> grad)
    if held.width == 1:
        return _apply(lazy, held, keys, n, entry, <const double*> grad)
    if single:
        return _apply_rows(lazy, held, keys, n, entry, <const float*> grad)
    return _apply_rows(lazy, held, keys, n, entry, <const double*> grad)


cdef bint flush(
    const Lazy* lazy, bint single, const Held* held, Py_ssize_t start, Py_ssize_t stop, int64_t now
) noexcept nogil:
    """Bring all coordinates up to update ``now``; True if all are finite."""
    if single:
        return _flush(lazy, held, start, stop, _entry(lazy, now, 0), <float> 0)
    return _flush(lazy, held, start, stop, _entry(lazy, now, 0), <double> 0)


cdef char* _address(array) except? NULL:
    return <char*> <uintptr_t> array.ctypes.data


cdef class LazyUpdate:
    """Updates at the keys of sparse gradients; other coordinates are updated when needed.

    Updates are counted over the life of the parameters; ``since`` (n,) int64 says up to which a
    coordinate is up to date.

    kernel: one whose `lazy` is true.
    runs: sequence of (int, int, bool), runs of coordinates and whether they are penalised,
        ascending, without gaps.
    single: whether vectors are float32.
    """

    def __init__(self, UpdateKernel kernel, double l1, double l2, runs, bint single):
        if not kernel.lazy:
            raise ValueError(f"{kernel.name} has no lazy updates")
        table = np.array(runs, np.int64).reshape(-1, 3)
        if (table[:, 2] == UNTRAINED).any():
            raise ValueError("tensors that are not trained go as whole vectors")
        self._arrays = (table,)
        self.single = single
        self.lazy.spec = kernel.spec
        self.lazy.age = 1
        self.lazy.l1 = l1
        self.lazy.l2 = l2
        self.lazy.n_runs = len(table)
        self.lazy.runs = <const int64_t*> _address(table)
        self.begin(np.zeros(0), 0)

    def begin(self, rates, int64_t before):
        """Set the learning rates of the updates after number `before`."""
        cdef Py_ssize_t n = len(rates), i
        cdef int exponent = 0
        cdef int64_t scale = 0
        cdef double rest = 1 - self.lazy.spec.momentum
        cdef double[::1] decays = np.ones(n + 1)
        cdef int64_t[::1] scales = np.zeros(n + 1, np.int64)
        cdef double[::1] given = np.array(rates, np.float64)
        sums = np.concatenate([[0.0], np.cumsum(given)])
        for i in range(n):
            decays[i + 1] = frexp(decays[i] * (1 + given[i] / rest * self.lazy.l2), &exponent)
            scale += exponent
            scales[i + 1] = scale
        # Rates whose powers overflow shrink too much per step for the series.
        powers = np.minimum(given.base, 1e50) ** np.arange(1, SERIES + 1)[:, None]
        moments = np.concatenate([np.zeros((SERIES, 1)), np.cumsum(powers, axis=1)], axis=1)
        self._tables = (given.base, sums, decays.base, scales.base, moments)
        self.lazy.constant = n == 0 or bool(np.all(np.equal(given, given[0])))
        self.lazy.highest = given.base.max(initial=0.0)
        self.lazy.steps = n
        self.lazy.before = before
        self.lazy.rates = <const double*> _address(self._tables[0])
        self.lazy.sums = <const double*> _address(sums)
        self.lazy.moments = <const double*> _address(moments)
        self.lazy.decays = <const double*> _address(self._tables[2])
        self.lazy.scales = <const int64_t*> _address(self._tables[3])

    @property
    def steps(self):
        return self.lazy.steps

    @property
    def before(self):
        return self.lazy.before
