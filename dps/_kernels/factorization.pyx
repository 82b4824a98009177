"""The gradient of factorization machines, with or without layers above the factors.

Owns the way from entries (``entries.pyx``) through the model and back. A row of the table is a
weight for each output, then the factors; those of a number are piecewise linear in it. With z = sum
of x w over the entries and s = sum of x v ("Factorization Machines", Rendle, 2010): ::

    raw_o = z_o + 1/2 sum_f p_of (s_f^2 - sum of (x v_f)^2)

where p is one for a single output, and for several ("Multi-output Polynomial Networks and
Factorization Machines", Blondel, Niculae, Otsuka and Ueda, 2017) is learned, as they share the
factors. The layers' inputs are s of each field side by side ("DeepFM", Guo et al., 2017).

For example, two entries of x = 1 with w = 0.1 and 0.2, and v = (1, 2) and (3, 0): z is 0.3, s is
(4, 2), the sums of squares are (10, 4), and raw is 0.3 + 1/2 ((16 - 10) + (4 - 4)) = 3.3, which is
the weights and the one product of factors, 0.3 + 1 * 3 + 2 * 0.

Rows wait until a block of them is full, wherever they lie: products of matrices are as fast as
blocks are long.
"""
from cython cimport floating
from libc.math cimport NAN
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

import numpy as np

from dps._kernels.block_gradient cimport BlockGradient, take_targets
from dps._kernels.buffer cimport Buffer
from dps._kernels.checks cimport same_length
from dps._kernels.entries cimport Machine, most_entries, take_entries
from dps._kernels.keys cimport Keys, need, touch as touch_key
from dps._kernels.layers cimport Layers, gemm
from dps._kernels.losses cimport LossKernel, evaluate
from dps._kernels.rows cimport CSR, CSR_WIDE, BlockRows, KeyedRows, Rows
from dps._kernels.subnormal cimport dps_no_subnormals, dps_restore

cdef extern from "factorization.h" nogil:
    void dps_pool_float(
        const float* table, Py_ssize_t many, Py_ssize_t k, const float* x, const int* place,
        const int* start, const int32_t* field, const int64_t* row, Py_ssize_t apart,
        float* linear, float* pooled, float* square, Py_ssize_t n)
    void dps_pool_double(
        const double* table, Py_ssize_t many, Py_ssize_t k, const double* x, const int* place,
        const int* start, const int32_t* field, const int64_t* row, Py_ssize_t apart,
        double* linear, double* pooled, double* square, Py_ssize_t n)
    void dps_spread_float(
        const float* table, float* out, Py_ssize_t many, Py_ssize_t k, const float* x,
        const int* place, const int* start, const int32_t* field, const int64_t* row,
        Py_ssize_t apart, const float* d, const float* c, const float* g, Py_ssize_t n)
    void dps_spread_double(
        const double* table, double* out, Py_ssize_t many, Py_ssize_t k, const double* x,
        const int* place, const int* start, const int32_t* field, const int64_t* row,
        Py_ssize_t apart, const double* d, const double* c, const double* g, Py_ssize_t n)

cdef enum:
    # Rows of a block without layers: the rows of the table that they touch stay in a cache.
    SHORT = 64
    MOST = 512  # largest number of rows of a block with layers
    FEWEST = 32
    ROOM = 1 << 20  # elements of a block's sums, if rows allow
    LAID = 1 << 14  # elements of dense rows that are copied side by side
    INT_MAX = 0x7FFFFFFF


cdef void _hold(
    const Machine* machine, int* places, Py_ssize_t first, Py_ssize_t last
) noexcept nogil:
    """Replace ids by rows of the table; missing ids become the row of zeros."""
    cdef Py_ssize_t p, low, high, middle, absent = machine.n_held - 1
    for p in range(first, last):
        low, high = 0, absent
        while low < high:
            middle = (low + high) // 2
            if machine.held[middle] < places[p]:
                low = middle + 1
            else:
                high = middle
        places[p] = <int> (low if low < absent and machine.held[low] == places[p] else absent)


cdef void _forward(
    FactorizationGradient self, const floating* table, const floating* dense,
    const floating* values, const int* places, const int* starts, const int64_t* rows,
    Py_ssize_t n, bint training,
) noexcept nogil:
    cdef const Machine* machine = &self.machine
    cdef Py_ssize_t i, f, o, at, k = machine.n_factors, many = machine.n_outputs
    cdef Py_ssize_t apart = machine.apart, units
    cdef floating* linear = <floating*> self.linear
    cdef floating* pooled = <floating*> self.pooled
    cdef floating* square = <floating*> self.square
    cdef floating* raw = <floating*> self.raw
    cdef const floating* mix = dense + machine.mix
    cdef const floating* shift = <const floating*> machine.shift
    cdef const floating* scale = <const floating*> machine.scale
    cdef const floating* above
    cdef floating total, half = <floating> (machine.factor_gain * machine.factor_gain / 2)
    memset(linear, 0, n * many * sizeof(floating))
    memset(pooled, 0, n * apart * sizeof(floating))
    memset(square, 0, n * k * sizeof(floating))
    if floating is float:
        dps_pool_float(
            table, many, k, values, places, starts, machine.fields, rows, apart, linear, pooled,
            square, n,
        )
    else:
        dps_pool_double(
            table, many, k, values, places, starts, machine.fields, rows, apart, linear, pooled,
            square, n,
        )
    for i in range(n):
        for f in range(k):  # the interactions, in place of the squares
            total = 0
            for at in range(apart // k):
                total += pooled[i * apart + at * k + f]
            square[i * k + f] = half * (total * total - square[i * k + f])
        for o in range(many):
            total = dense[o] + linear[i * many + o]
            for f in range(k):
                total += square[i * k + f] if many == 1 else mix[o * k + f] * square[i * k + f]
            raw[i * many + o] = total
    if self.layers is not None:
        units = self.layers.sizes[0]
        gemm(
            c"N", c"N", n, units, apart, machine.layer_gain, pooled, apart,
            dense + machine.first_layer, units, 0, <floating*> self.layers.outputs[0],
        )
        self.layers.forward(dense, n, training, self.key, self.done)
        above = <const floating*> self.layers.outputs[self.layers.n_layers - 1]
        for i in range(n * many):
            raw[i] += above[i]
    for i in range(n):
        for o in range(many):
            raw[i * many + o] = shift[o] + scale[o] * raw[i * many + o]


cdef void _backward(
    FactorizationGradient self, const floating* table, const floating* dense, floating* out,
    floating* out_dense, const floating* values, const int* places, const int* starts,
    const int64_t* rows, Py_ssize_t n,
) noexcept nogil:
    """Compute derivatives of the parameters from those of raw outputs, in ``slope``."""
    cdef const Machine* machine = &self.machine
    cdef Py_ssize_t i, f, o, at, k = machine.n_factors, many = machine.n_outputs
    cdef Py_ssize_t apart = machine.apart, units
    cdef const floating* pooled = <const floating*> self.pooled
    cdef const floating* mix = dense + machine.mix
    cdef const floating* scale = <const floating*> machine.scale
    cdef floating* g = <floating*> self.square
    cdef floating* c = <floating*> self.c
    cdef floating* slope = <floating*> self.slope
    cdef floating* d
    cdef floating total, given
    cdef floating gain = <floating> (machine.factor_gain * machine.factor_gain)
    for i in range(n):
        for o in range(many):
            slope[i * many + o] *= scale[o]
            out_dense[o] += slope[i * many + o]
    if self.layers is not None:
        memcpy(self.layers.back, slope, n * many * sizeof(floating))
        d = <floating*> self.layers.backward(dense, out_dense, n)
        units = self.layers.sizes[0]
        gemm(
            c"T", c"N", apart, units, n, machine.layer_gain, pooled, apart, d, units, 1,
            out_dense + machine.first_layer,
        )
        gemm(
            c"N", c"T", n, apart, units, machine.layer_gain, d, units,
            dense + machine.first_layer, units, 0, c,
        )
    else:
        memset(c, 0, n * apart * sizeof(floating))
    for i in range(n):
        for f in range(k):
            given = slope[i] if many == 1 else 0
            for o in range(many if many > 1 else 0):
                given += mix[o * k + f] * slope[i * many + o]
                out_dense[machine.mix + o * k + f] += g[i * k + f] * slope[i * many + o]
            g[i * k + f] = gain * given
            total = 0
            for at in range(apart // k):
                total += pooled[i * apart + at * k + f]
            for at in range(apart // k):
                c[i * apart + at * k + f] += gain * given * total
    if floating is float:
        dps_spread_float(
            table, out, many, k, values, places, starts, machine.fields, rows, apart, slope, c, g,
            n,
        )
    else:
        dps_spread_double(
            table, out, many, k, values, places, starts, machine.fields, rows, apart, slope, c, g,
            n,
        )


cdef double _through(
    FactorizationGradient self, const floating* table, const floating* dense, floating* out,
    floating* out_dense, const floating* values, const int* places, const int* starts,
    const int64_t* rows,
) noexcept nogil:
    """Pass the waiting rows through the model, and back unless raw outputs are requested.

    Entry p belongs to row ``places[p]`` of ``table`` and ``out``. If these are not the whole table,
    that is row ``rows[places[p]]``.
    """
    cdef Py_ssize_t n = self.count, many = self.machine.n_outputs
    cdef bint training = self.raw_out is NULL
    cdef const floating* weight = NULL
    cdef double loss = 0
    cdef uint64_t mode = dps_no_subnormals()
    if n:
        _forward(self, table, dense, values, places, starts, rows, n, training)
        if training:
            if self.weighted:
                weight = <const floating*> self.weight
            loss = evaluate(
                self.machine.loss, <const floating*> self.y, self.y_width,
                <const floating*> self.raw, weight, <floating*> self.slope, n, many,
            )
            _backward(
                self, table, dense, out, out_dense, values, places, starts, rows, n
            )
        else:
            memcpy(self.raw_out, self.raw, n * many * sizeof(floating))
            self.raw_out += n * many * sizeof(floating)
    self.done += n
    self.count = self.stored = 0
    self.weighted = False
    dps_restore(mode)
    return loss


cdef int _touch(
    FactorizationGradient self, const Rows* rows, const int64_t* order, Py_ssize_t start,
    Py_ssize_t m, Py_ssize_t ahead, KeyedRows laid, const floating* example,
) except -1 nogil:
    cdef const Machine* machine = &self.machine
    cdef Py_ssize_t stored = laid.n_stored, most, i, p, row
    cdef Py_ssize_t behind = (self.size - machine.dense + machine.width - 1) // machine.width
    cdef int64_t flip = -1 if self.tabled else 0  # keys of ids are negative
    cdef floating* values
    cdef int* places
    cdef int* starts
    cdef Keys keys
    # A batch first touches the parameters outside the table.
    need(&laid.keys, behind)
    for row in range(machine.n_held, machine.n_held + behind):
        touch_key(&laid.keys, row)
    most = stored + most_entries(machine, rows, order, start, m)
    if most > INT_MAX:
        with gil:
            raise ValueError(f"a batch has more than {INT_MAX} entries: make it smaller")
    values = <floating*> laid.values.fit(most * sizeof(floating))
    places = <int*> laid.places.fit(most * sizeof(int))
    starts = <int*> laid.starts.fit((laid.n_rows + m + 1) * sizeof(int)) + laid.n_rows
    laid.n_stored = take_entries(
        machine, <floating*> self.x, rows, order, start, m, ahead, values, places, starts, stored
    )
    laid.n_rows += m
    for i in range(m):
        need(&laid.keys, starts[i + 1] - starts[i])
        keys = laid.keys  # the compiler must assume that writes may change it
        for p in range(starts[i], starts[i + 1]):
            places[p] = <int> touch_key(&keys, places[p] ^ flip)
        laid.keys = keys
    if flip:
        self.ids.fit(laid.keys.count * sizeof(int64_t))
    return 0


cdef double _add_touched(
    FactorizationGradient self, const Rows* rows, const int64_t* order, Py_ssize_t start,
    Py_ssize_t m, KeyedRows keys, const floating* params, floating* out,
) noexcept nogil:
    """Add the gradient by keys: rows are side by side, after the parameters outside the table."""
    cdef Rows laid = keys.take(m)
    cdef const int64_t* rows_of = self._rows_of_keys(keys)
    cdef Py_ssize_t taken = 0, n
    cdef double loss = 0
    while taken < m:
        n = min(m - taken, self.machine.block)
        take_targets(self, rows, order, start + taken, taken, n, params)
        self.count = n
        loss += _through(
            self, params, params, out, out, <const floating*> laid.values,
            <const int*> laid.indices, <const int*> laid.indptr + taken, rows_of,
        )
        taken += n
    return loss


cdef void _raw_touched(
    FactorizationGradient self, Py_ssize_t m, KeyedRows keys, const floating* params
) noexcept nogil:
    cdef Rows laid = keys.take(m)
    cdef const int64_t* rows_of = self._rows_of_keys(keys)
    cdef Py_ssize_t taken = 0
    while taken < m:
        self.count = min(m - taken, self.machine.block)
        taken += self.count
        _through(
            self, params, params, <floating*> NULL, <floating*> NULL, <const floating*> laid.values,
            <const int*> laid.indices, <const int*> laid.indptr + taken - self.count, rows_of,
        )


cdef class FactorizationGradient(BlockGradient):
    """Gradient of a factorization machine, shaped as `dps.models.factorization` says."""

    def __cinit__(self, shape, LossKernel loss, *, bint single):
        cdef Machine* machine = &self.machine
        cdef Py_ssize_t k = shape.n_factors, many = shape.n_outputs, rows
        dtype = "f4" if single else "f8"
        fixed = {}
        for name, kind in (
            ("places", "i4"), ("rows", "i4"), ("fields", "i4"), ("bins", "i4"), ("firsts", "i4"),
            ("knots", dtype), ("steepness", dtype), ("shift", dtype), ("scale", dtype),
        ):
            given = getattr(shape, name)
            if given is not None:
                fixed[name] = np.require(given, kind, ["C", "A"])
        self._arrays = tuple(fixed.values())
        self.single = single
        self.size = shape.size
        self.keyed, self.key_width = True, many + k
        machine.loss = loss.spec
        machine.n_features, machine.n_rows = shape.n_features, shape.n_rows
        self.n_features, self.n_outputs = shape.n_features, many
        machine.n_held, self.tabled = shape.n_held, shape.tabled
        if shape.held is not None:
            held = np.append(np.require(shape.held, np.int64), np.int64(0))
            same_length("rows that are held", machine.n_held, len(held))
            self._arrays += (held,)
            machine.held = <const int64_t*> <uintptr_t> held.ctypes.data
        machine.n_outputs, machine.n_factors, machine.width = many, k, many + k
        machine.apart = k * shape.n_fields
        machine.n_numbers = len(fixed["firsts"])
        machine.dense = machine.n_held * machine.width
        machine.mix = shape.mix_at - machine.dense
        machine.factor_gain = shape.factor_gain
        machine.gain, machine.normalised = shape.gain, shape.normalised
        same_length("bins", len(fixed["bins"]), machine.n_numbers + 1)
        same_length("knots", len(fixed["knots"]), fixed["bins"][machine.n_numbers])
        same_length("steepness", len(fixed["steepness"]), fixed["bins"][machine.n_numbers])
        for name in ("shift", "scale"):
            same_length(name, len(fixed[name]), many)
        machine.bins = <const int32_t*> <uintptr_t> fixed["bins"].ctypes.data
        machine.firsts = <const int32_t*> <uintptr_t> fixed["firsts"].ctypes.data
        machine.knots = <const char*> <uintptr_t> fixed["knots"].ctypes.data
        machine.steepness = <const char*> <uintptr_t> fixed["steepness"].ctypes.data
        machine.shift = <const char*> <uintptr_t> fixed["shift"].ctypes.data
        machine.scale = <const char*> <uintptr_t> fixed["scale"].ctypes.data
        if "places" in fixed:
            same_length("places", len(fixed["places"]), machine.n_features)
            same_length("rows", len(fixed["rows"]), machine.n_features)
            machine.places = <const int32_t*> <uintptr_t> fixed["places"].ctypes.data
            machine.rows = <const int32_t*> <uintptr_t> fixed["rows"].ctypes.data
        else:
            same_length("rows of the table", machine.n_rows, machine.n_features)
        if "fields" in fixed:
            same_length("fields", len(fixed["fields"]), machine.n_rows)
            machine.fields = <const int32_t*> <uintptr_t> fixed["fields"].ctypes.data
        elif shape.n_fields != 1:
            raise ValueError(f"{shape.n_fields} fields are not told apart")
        machine.block = rows = SHORT
        if shape.layers is not None:
            widest = max(machine.apart, *shape.layers.sizes)
            # A multiple of four, since four units share a hash.
            machine.block = rows = max(FEWEST, min(MOST, ROOM // widest // 4 * 4))
            self.layers = Layers(shape.layers, rows, 1, single=single)
            machine.first_layer = shape.layers.first
            machine.layer_gain = shape.layers.gains[0]
        machine.laid = max(1, min(rows, LAID // max(1, machine.n_features)))
        self.values, self.found, self.ids = Buffer(), Buffer(), Buffer()
        self.starts = self._room(rows + 1, 4)
        self.x = self._room(max(machine.n_numbers, 1))
        self.linear = self._room(rows * many)
        self.pooled = self._room(rows * machine.apart)
        self.square = self._room(rows * k)
        self.c = self._room(rows * machine.apart)
        self.raw = self._room(rows * many)
        self.slope = self._room(rows * many)
        self.y = self._room(rows * many)
        self.weight = self._room(rows)

    cdef int check(self, BlockRows block) except -1:
        BlockGradient.check(self, block)
        if block.rows.kind not in (CSR, CSR_WIDE) and not self.lays:
            self.x = self._room(self.machine.laid * self.n_features)
            self.lays = True
        return 0

    cdef const int64_t* _rows_of_keys(self, KeyedRows keys) noexcept nogil:
        """Return the row of each key, if fields matter; 0 for keys without a row."""
        cdef Py_ssize_t i
        cdef int64_t* ids
        if not self.tabled or self.machine.fields is NULL:
            return keys.keys.list
        ids = <int64_t*> self.ids.at
        for i in range(keys.keys.count):
            ids[i] = max(~keys.keys.list[i], 0)
        return ids

    cdef double add(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, const void* params, void* out,
    ) noexcept nogil:
        cdef Py_ssize_t taken = 0, n, before, most
        cdef int* places
        cdef int* starts
        cdef double loss = 0
        while taken < m:
            if self.count == self.machine.block:
                loss += self.take_through(params, out)
            n = min(m - taken, self.machine.block - self.count)
            most = self.stored + most_entries(&self.machine, rows, order, start + taken, n)
            if not self._fit(self.found, most * 4, self.values, most * (4 if self.single else 8)):
                return NAN
            places, starts = <int*> self.found.at, <int*> self.starts + self.count
            before = self.stored
            if self.single:
                self.stored = take_entries(
                    &self.machine, <float*> self.x, rows, order, start + taken, n,
                    m + ahead - taken - n, <float*> self.values.at, places, starts, self.stored,
                )
                take_targets(self, rows, order, start + taken, taken, n, <const float*> NULL)
            else:
                self.stored = take_entries(
                    &self.machine, <double*> self.x, rows, order, start + taken, n,
                    m + ahead - taken - n, <double*> self.values.at, places, starts, self.stored,
                )
                take_targets(self, rows, order, start + taken, taken, n, <const double*> NULL)
            if self.machine.held is not NULL:
                _hold(&self.machine, places, before, self.stored)
            self.count += n
            taken += n
        return loss

    cdef double take_through(self, const void* params, void* out) noexcept nogil:
        cdef Py_ssize_t at = self.machine.dense
        cdef const int* places = <const int*> self.found.at
        cdef const int* starts = <const int*> self.starts
        if self.single:
            return _through(
                self, <const float*> params, <const float*> params + at, <float*> out,
                <float*> out + at, <const float*> self.values.at, places, starts,
                self.machine.held,
            )
        return _through(
            self, <const double*> params, <const double*> params + at, <double*> out,
            <double*> out + at, <const double*> self.values.at, places, starts,
            self.machine.held,
        )

    cdef double finish(self, const void* params, void* out) noexcept nogil:
        return self.take_through(params, out)

    cdef int touch(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, KeyedRows keys,
    ) except -1 nogil:
        """Touch the keys of rows of the table, and of the other parameters in rows of that length.
        """
        if self.single:
            return _touch(self, rows, order, start, m, ahead, keys, <const float*> NULL)
        return _touch(self, rows, order, start, m, ahead, keys, <const double*> NULL)

    cdef double add_touched(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, KeyedRows keys, const void* params, void* out,
    ) noexcept nogil:
        if self.single:
            return _add_touched(
                self, rows, order, start, m, keys, <const float*> params, <float*> out
            )
        return _add_touched(
            self, rows, order, start, m, keys, <const double*> params, <double*> out
        )

    cdef void raw_touched(
        self, KeyedRows keys, Py_ssize_t m, const void* params, void* out
    ) noexcept nogil:
        self.begin(0)
        self.raw_out = <char*> out
        if self.single:
            _raw_touched(self, m, keys, <const float*> params)
        else:
            _raw_touched(self, m, keys, <const double*> params)
        self.raw_out = NULL
