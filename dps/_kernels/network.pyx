"""The gradient of a multilayer network, block by block, by matrix products.

Owns the way of rows through a network and back. Gathers rows of a batch, wherever they lie, until a
block is full, since products of matrices are as fast as their blocks are long; `finish` takes the
last block.

A row goes in as numbers and as plain columns. A number x is scaled, and embedded by its place
among its bins: t = clip((x - edge) / width, 0, 1) for each, times the rows of the embedding
("On Embeddings for Numerical Features in Tabular Deep Learning", Gorishniy, Rubachev and Babenko,
2022). Bins below it count whole, and one in part: with sums of the rows before each bin it takes
two rows. Plain columns, of one-hot categories or words, are sparse rows of the first layer.
All else of its layers is in layers.pyx.
"""
from cython cimport floating
from libc.math cimport NAN
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

import numpy as np

from dps._kernels.buffer cimport Buffer
from dps._kernels.checks cimport same_length
from dps._kernels.gather cimport fill_rows
from dps._kernels.layers cimport Layers, gemm
from dps._kernels.losses cimport LossKernel, evaluate
from dps._kernels.rows cimport (
    COLUMNS, CSR, CSR_WIDE, DENSE, BlockRows, Rows
)
from dps._kernels.block_gradient cimport BlockGradient, row_of, take_targets
from dps._kernels.subnormal cimport dps_no_subnormals, dps_restore

cdef enum:
    MOST = 512  # largest number of rows of a block
    FEWEST = 32
    ROOM = 1 << 20  # elements of a block's widest layer, if rows allow


cdef void _prepare(NetworkGradient self, const floating* params, bint back) noexcept nogil:
    """Compute values that depend on the parameters only, once per batch."""
    cdef Network* net = &self.net
    cdef Py_ssize_t i, j, c, b, h = net.sizes[1], d = net.width
    cdef const floating* dense = params + net.weights + net.n_plain * h
    cdef const floating* scale = params + net.scale
    cdef const floating* embedding = params + net.embedding
    cdef floating* first = <floating*> self.first
    cdef floating* prefix = <floating*> self.prefix
    cdef floating gain = <floating> net.scale_gain
    for i in range(net.n_dense):
        for c in range(h):
            first[i * h + c] = gain * scale[i] * dense[i * h + c]
    for j in range(net.n_numbers):
        for c in range(d):
            prefix[net.bins[j] * d + c] = 0
        for b in range(net.bins[j] + 1, net.bins[j + 1]):
            for c in range(d):
                prefix[b * d + c] = prefix[(b - 1) * d + c] + embedding[(b - 1) * d + c]
    if back:
        memset(self.first_grad, 0, net.n_dense * h * sizeof(floating))
        memset(self.whole_bins, 0, net.n_bins * d * sizeof(floating))
        memset(self.part_bins, 0, net.n_bins * d * sizeof(floating))
    self.prepared = True


cdef void _embed(NetworkGradient self, const floating* embedding, Py_ssize_t n) noexcept nogil:
    """Compute the dense inputs of n rows."""
    cdef Network* net = &self.net
    cdef Py_ssize_t i, j, e, c, at, d = net.width, m = net.n_numbers, bins
    cdef const floating* x = <const floating*> self.x
    cdef floating* out = <floating*> self.inputs
    cdef int64_t* at_bin = <int64_t*> self.at_bin
    cdef floating* inside = <floating*> self.inside
    cdef const floating* centre = <const floating*> net.centre
    cdef const floating* spread = <const floating*> net.spread
    cdef const floating* steepness = <const floating*> net.steepness
    cdef const floating* prefix = <const floating*> self.prefix
    cdef const floating* edges
    cdef floating value, scaled, part, most = <floating> net.range
    cdef floating* row
    cdef int count
    for i in range(n):
        row = out + i * net.n_dense
        for j in range(m):
            value = x[i * m + j]
            scaled = (value - centre[j]) * spread[j]
            scaled = scaled if not scaled > most else most
            row[j] = scaled if not scaled < -most else -most
            if d == 0:
                continue
            bins = net.bins[j + 1] - net.bins[j]
            edges = <const floating*> net.edges + net.bins[j] + j
            count = 0
            for e in range(1, bins):
                count += value >= edges[e]
            at = net.bins[j] + count
            part = (value - edges[count]) * steepness[at]
            part = part if not part > 1 else 1
            part = part if not part < 0 else 0
            at_bin[i * m + j] = at
            inside[i * m + j] = part
            for c in range(d):
                row[m + j * d + c] = prefix[at * d + c] + part * embedding[at * d + c]


cdef void _embed_back(NetworkGradient self, const floating* d_inputs, Py_ssize_t n) noexcept nogil:
    """Add derivatives of embedded numbers, (n, n_numbers * width), to their bins."""
    cdef Network* net = &self.net
    cdef Py_ssize_t i, j, c, at, d = net.width, m = net.n_numbers
    cdef const int64_t* at_bin = <const int64_t*> self.at_bin
    cdef const floating* inside = <const floating*> self.inside
    cdef floating* whole = <floating*> self.whole_bins
    cdef floating* part = <floating*> self.part_bins
    cdef const floating* given
    cdef floating share
    for i in range(n):
        for j in range(m):
            at = at_bin[i * m + j]
            share = inside[i * m + j]
            given = d_inputs + (i * m + j) * d
            for c in range(d):
                whole[at * d + c] += given[c]
                part[at * d + c] += share * given[c]


cdef void _fold(NetworkGradient self, const floating* params, floating* out) noexcept nogil:
    """Add sums over a batch to the gradients of scale, first layer and embedding."""
    cdef Network* net = &self.net
    cdef Py_ssize_t i, j, b, c, h = net.sizes[1], d = net.width
    cdef Py_ssize_t at = net.weights + net.n_plain * h
    cdef const floating* grad = <const floating*> self.first_grad
    cdef floating* whole = <floating*> self.whole_bins
    cdef const floating* part = <const floating*> self.part_bins
    cdef floating gain = <floating> net.scale_gain, total
    for i in range(net.n_dense):
        total = 0
        for c in range(h):
            total += grad[i * h + c] * params[at + i * h + c]
            out[at + i * h + c] += gain * params[net.scale + i] * grad[i * h + c]
        out[net.scale + i] += gain * total
    for j in range(net.n_numbers):
        # A bin counts whole for values in any bin above it.
        for b in range(net.bins[j + 1] - 2, net.bins[j] - 1, -1):
            for c in range(d):
                whole[b * d + c] += whole[(b + 1) * d + c]
        for b in range(net.bins[j], net.bins[j + 1]):
            for c in range(d):
                out[net.embedding + b * d + c] += part[b * d + c]
                if b + 1 < net.bins[j + 1]:
                    out[net.embedding + b * d + c] += whole[(b + 1) * d + c]


cdef void _forward(
    NetworkGradient self, const floating* params, Py_ssize_t n, bint training
) noexcept nogil:
    cdef Network* net = &self.net
    cdef Py_ssize_t i, p, c, size = net.sizes[1], k = net.sizes[net.n_layers]
    cdef const int64_t* starts = <const int64_t*> self.plain_starts
    cdef const int64_t* columns = <const int64_t*> self.plain_columns.at
    cdef const floating* values = <const floating*> self.plain_values.at
    cdef floating* z = <floating*> self.layers.outputs[0]
    cdef const floating* row
    cdef floating factor
    cdef const floating* shift = <const floating*> net.output_shift
    cdef const floating* grow = <const floating*> net.output_scale
    if net.n_dense:
        gemm(
            c"N", c"N", n, size, net.n_dense, net.gain, <floating*> self.inputs, net.n_dense,
            <floating*> self.first, size, 0, z,
        )
    else:
        memset(z, 0, n * size * sizeof(floating))
    for i in range(n if net.n_plain else 0):
        for p in range(starts[i], starts[i + 1]):
            factor = <floating> net.gain * values[p]
            row = params + net.weights + columns[p] * size
            for c in range(size):
                z[i * size + c] += factor * row[c]
    self.layers.forward(params, n, training, self.key, self.done)
    z = <floating*> self.layers.outputs[net.n_layers - 1]
    for i in range(n):
        for c in range(k):
            z[i * k + c] = shift[c] + grow[c] * z[i * k + c]


cdef void _backward(
    NetworkGradient self, const floating* params, floating* out, Py_ssize_t n
) noexcept nogil:
    """Compute derivatives of the parameters from those of raw outputs."""
    cdef Network* net = &self.net
    cdef Py_ssize_t i, p, c, size = net.sizes[1], k = net.sizes[net.n_layers]
    cdef const int64_t* starts = <const int64_t*> self.plain_starts
    cdef const int64_t* columns = <const int64_t*> self.plain_columns.at
    cdef const floating* values = <const floating*> self.plain_values.at
    cdef const floating* grow = <const floating*> net.output_scale
    cdef floating* d = <floating*> self.layers.back
    cdef floating* d_inputs
    cdef floating* row
    cdef floating factor
    for i in range(n):
        for c in range(k):
            d[i * k + c] *= grow[c]
    d = <floating*> self.layers.backward(params, out, n)
    if net.n_dense:
        gemm(
            c"T", c"N", net.n_dense, size, n, net.gain, <floating*> self.inputs, net.n_dense,
            d, size, 1, <floating*> self.first_grad,
        )
    for i in range(n if net.n_plain else 0):
        for p in range(starts[i], starts[i + 1]):
            factor = <floating> net.gain * values[p]
            row = out + net.weights + columns[p] * size
            for c in range(size):
                row[c] += factor * d[i * size + c]
    if net.width:
        d_inputs = <floating*> self.layers.spare(<char*> d)
        gemm(
            c"N", c"T", n, net.n_numbers * net.width, size, net.gain, d, size,
            <const floating*> self.first + net.n_numbers * size, size, 0, d_inputs,
        )
        _embed_back(self, d_inputs, n)


cdef double _through(
    NetworkGradient self, const floating* params, floating* out
) noexcept nogil:
    """Pass the waiting rows through the network, and back unless raw outputs are requested."""
    cdef Network* net = &self.net
    cdef Py_ssize_t n = self.count, k = net.sizes[net.n_layers]
    cdef bint training = self.raw_out is NULL
    cdef floating* raw = <floating*> self.layers.outputs[net.n_layers - 1]
    cdef const floating* weight = NULL
    cdef double loss = 0
    cdef uint64_t mode = dps_no_subnormals()
    if not self.prepared:
        _prepare(self, params, training)
    if n:
        _embed(self, params + net.embedding, n)
        _forward(self, params, n, training)
        if training:
            if self.weighted:
                weight = <const floating*> self.weight
            loss = evaluate(
                net.loss, <const floating*> self.y, self.y_width, raw, weight,
                <floating*> self.layers.back, n, k,
            )
            _backward(self, params, out, n)
        else:
            memcpy(self.raw_out, raw, n * k * sizeof(floating))
            self.raw_out += n * k * sizeof(floating)
    self.done += n
    self.count = self.stored = 0
    self.weighted = False
    dps_restore(mode)
    return loss


cdef void _take_sparse(
    NetworkGradient self, const Rows* rows, Py_ssize_t row, floating* x
) noexcept nogil:
    """Add row ``row`` of CSR rows to the waiting rows; there is room for its values."""
    cdef Network* net = &self.net
    cdef Py_ssize_t p, first, last, column, place, m = net.n_numbers
    cdef const floating* values = <const floating*> rows.values
    cdef int64_t* columns = <int64_t*> self.plain_columns.at
    cdef floating* plain = <floating*> self.plain_values.at
    memset(x, 0, m * sizeof(floating))
    if rows.kind == CSR:
        first, last = (<const int*> rows.indptr)[row], (<const int*> rows.indptr)[row + 1]
    else:
        first, last = (<const int64_t*> rows.indptr)[row], (<const int64_t*> rows.indptr)[row + 1]
    for p in range(first, last):
        if rows.kind == CSR:
            column = (<const int*> rows.indices)[p]
        else:
            column = (<const int64_t*> rows.indices)[p]
        place = net.places[column]
        if place >= 0:
            x[place] += values[p]
        else:
            columns[self.stored] = -1 - place
            plain[self.stored] = values[p]
            self.stored += 1


cdef Py_ssize_t _stored_in(
    const Rows* rows, const int64_t* order, Py_ssize_t at, Py_ssize_t n
) noexcept nogil:
    """Return the number of values of n CSR rows of a batch."""
    cdef Py_ssize_t i, row, total = 0
    for i in range(at, at + n):
        row = row_of(order, i)
        if rows.kind == CSR:
            total += (<const int*> rows.indptr)[row + 1] - (<const int*> rows.indptr)[row]
        else:
            total += (<const int64_t*> rows.indptr)[row + 1] - (<const int64_t*> rows.indptr)[row]
    return total


cdef void _take(
    NetworkGradient self, const Rows* rows, const int64_t* order, Py_ssize_t at, Py_ssize_t first,
    Py_ssize_t n, const floating* example,
) noexcept nogil:
    """Add n rows of a batch, from number ``first`` on, to the waiting rows."""
    cdef Network* net = &self.net
    cdef Py_ssize_t i, row, m = net.n_numbers
    cdef floating* x = <floating*> self.x + self.count * m
    cdef Py_ssize_t apart = rows.stride
    if rows.kind == CSR or rows.kind == CSR_WIDE:
        for i in range(n):
            (<int64_t*> self.plain_starts)[self.count + i] = self.stored
            _take_sparse(self, rows, row_of(order, at + i), x + i * m)
        (<int64_t*> self.plain_starts)[self.count + n] = self.stored
    elif rows.kind == COLUMNS:
        fill_rows(rows.columns, m, order, at, n, x)
    else:
        if rows.kind == DENSE:
            apart *= sizeof(floating)
        for i in range(n):
            row = row_of(order, at + i)
            memcpy(x + i * m, rows.values + row * apart, m * sizeof(floating))
    take_targets(self, rows, order, at, first, n, example)
    self.count += n


cdef class NetworkGradient(BlockGradient):
    """Gradient of a network under a loss, shaped as `dps.models.network.Shape` says."""

    def __cinit__(self, shape, LossKernel loss, *, bint single):
        cdef Network* net = &self.net
        cdef Py_ssize_t widest
        dtype = "f4" if single else "f8"
        fixed = {}
        for name, kind in (
            ("places", "i8"), ("sizes", "i8"), ("bins", "i8"), ("centre", dtype),
            ("spread", dtype), ("edges", dtype), ("steepness", dtype), ("output_scale", dtype),
            ("output_shift", dtype),
        ):
            fixed[name] = np.require(getattr(shape, name), kind, ["C", "A"])
        self._arrays = tuple(fixed.values())
        self.single = single
        self.size = shape.size
        net.loss = loss.spec
        net.range = shape.range
        net.scale_gain = shape.scale_gain
        net.width = shape.width
        net.embedding, net.scale = shape.embedding_at, shape.scale_at
        net.places = <const int64_t*> <uintptr_t> fixed["places"].ctypes.data
        net.sizes = <const int64_t*> <uintptr_t> fixed["sizes"].ctypes.data
        net.weights, net.gain = shape.weights[0], shape.gains[0]
        net.bins = <const int64_t*> <uintptr_t> fixed["bins"].ctypes.data
        net.centre = <const char*> <uintptr_t> fixed["centre"].ctypes.data
        net.spread = <const char*> <uintptr_t> fixed["spread"].ctypes.data
        net.edges = <const char*> <uintptr_t> fixed["edges"].ctypes.data
        net.steepness = <const char*> <uintptr_t> fixed["steepness"].ctypes.data
        net.output_scale = <const char*> <uintptr_t> fixed["output_scale"].ctypes.data
        net.output_shift = <const char*> <uintptr_t> fixed["output_shift"].ctypes.data
        net.n_layers = len(fixed["sizes"]) - 1
        self.n_features, self.n_outputs = len(fixed["places"]), fixed["sizes"][net.n_layers]
        net.n_numbers = len(fixed["centre"])
        net.n_bins = len(fixed["steepness"])
        net.n_dense = net.n_numbers * (1 + net.width)
        net.n_plain = fixed["sizes"][0] - net.n_dense
        same_length("bins", len(fixed["bins"]), net.n_numbers + 1)
        same_length("edges", len(fixed["edges"]), net.n_bins + net.n_numbers)
        same_length("spread", len(fixed["spread"]), net.n_numbers)
        same_length("bins of all numbers", fixed["bins"][net.n_numbers], net.n_bins)
        for name in ("output_scale", "output_shift"):
            same_length(name, len(fixed[name]), fixed["sizes"][net.n_layers])
        widest = max(net.n_dense, int(fixed["sizes"][1:].max()), 1)
        # A multiple of four, since four units share a hash.
        net.block = max(FEWEST, min(MOST, ROOM // widest // 4 * 4))
        self.plain_columns, self.plain_values = Buffer(), Buffer()
        self.layers = Layers(shape, net.block, net.n_dense, single=single)
        self._make_room()

    cdef int _make_room(self) except -1:
        cdef Network* net = &self.net
        cdef Py_ssize_t rows = net.block
        self.plain_starts = self._room(rows + 1, 8)
        self.x = self._room(rows * net.n_numbers)
        self.inputs = self._room(rows * net.n_dense)
        self.at_bin = self._room(rows * net.n_numbers, 8)
        self.inside = self._room(rows * net.n_numbers)
        self.y = self._room(rows * net.sizes[net.n_layers])
        self.weight = self._room(rows)
        self.first = self._room(net.n_dense * net.sizes[1])
        self.first_grad = self._room(net.n_dense * net.sizes[1])
        self.prefix = self._room(net.n_bins * net.width)
        self.whole_bins = self._room(net.n_bins * net.width)
        self.part_bins = self._room(net.n_bins * net.width)
        return 0

    cdef int check(self, BlockRows block) except -1:
        BlockGradient.check(self, block)
        if self.net.n_plain and block.rows.kind not in (CSR, CSR_WIDE):
            raise ValueError("a network with plain columns takes CSR rows")
        return 0

    cdef void begin(self, uint64_t key) noexcept nogil:
        BlockGradient.begin(self, key)
        self.prepared = False

    cdef double add(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, const void* params, void* out,
    ) noexcept nogil:
        cdef Py_ssize_t taken = 0, n, stored
        cdef double loss = 0
        while taken < m:
            if self.count == self.net.block:
                loss += self.take_through(params, out)
            n = min(m - taken, self.net.block - self.count)
            if rows.kind == CSR or rows.kind == CSR_WIDE:
                stored = self.stored + _stored_in(rows, order, start + taken, n)
                if not self._fit(
                    self.plain_columns, stored * 8,
                    self.plain_values, stored * (4 if self.single else 8),
                ):
                    return NAN
            if self.single:
                _take(self, rows, order, start + taken, taken, n, <const float*> NULL)
            else:
                _take(self, rows, order, start + taken, taken, n, <const double*> NULL)
            taken += n
        return loss

    cdef double take_through(self, const void* params, void* out) noexcept nogil:
        if self.single:
            return _through(self, <const float*> params, <float*> out)
        return _through(self, <const double*> params, <double*> out)

    cdef double finish(self, const void* params, void* out) noexcept nogil:
        cdef double loss = self.take_through(params, out)
        if self.single:
            _fold(self, <const float*> params, <float*> out)
        else:
            _fold(self, <const double*> params, <double*> out)
        self.prepared = False
        return loss
