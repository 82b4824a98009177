"""Rows of a block with their targets and weights, and what a model computes on them.

It defines the form of data for native loops, and finds what sparse rows touch. A batch is rows
``order[start : start + m]`` of a block, or rows ``start .. start + m`` without an order.
"""
from cython cimport floating
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from dps._kernels.buffer cimport Buffer
from dps._kernels.checks cimport DPS_DEBUG, contiguous_rows, index_t, indices_below, same_length
from dps._kernels.gather cimport ColumnTable
from dps._kernels.keys cimport KeyList, Keys, need, touch as touch_key
from dps._kernels.prefetch cimport dps_prefetch

cdef enum:
    SOON = 16  # rows that are prefetched ahead of the current one
    LINE = 64  # bytes of a cache line
    INT_MAX = 0x7FFFFFFF


cdef const char* _address(array) except? NULL:
    return <const char*> <uintptr_t> array.__array_interface__["data"][0]


cdef int _check(str name, array, dtype) except -1:
    if array.dtype != dtype or not array.flags.c_contiguous or not array.flags.aligned:
        raise ValueError(f"{name} must be contiguous, aligned and {dtype}, got {array.dtype}")
    return 0


cdef BlockRows _new(
    int kind, Py_ssize_t length, Py_ssize_t n_features, y, weight, bint picked
):
    cdef BlockRows block = BlockRows.__new__(BlockRows)
    y = y if y.ndim == 2 else y[:, None]
    if y.dtype.name not in ("float32", "float64"):
        raise ValueError(f"y must be float32 or float64, got {y.dtype}")
    _check("y", y, y.dtype)
    if not picked:
        same_length("y", y.shape[0], length)
    if weight is not None:
        _check("weight", weight, y.dtype)
        same_length("weight", weight.shape[0], y.shape[0])
        block.rows.weight = _address(weight)
    block.rows.kind = kind
    block.rows.single = y.dtype.itemsize == 4
    block.rows.length = length
    block.rows.n_features = n_features
    block.rows.picked = picked
    block.rows.y = _address(y)
    block.rows.y_width = y.shape[1]
    block._arrays = (y, weight)
    return block


cdef int _look_at_indices(const Rows* rows, Py_ssize_t stored) except -1:
    if rows.kind == CSR:
        indices_below("indptr", <const int*> rows.indptr, rows.length + 1, stored + 1)
        indices_below("indices", <const int*> rows.indices, stored, rows.n_features)
    else:
        indices_below("indptr", <const int64_t*> rows.indptr, rows.length + 1, stored + 1)
        indices_below("indices", <const int64_t*> rows.indices, stored, rows.n_features)
    return 0


cdef class BlockRows:
    """Rows of a block with their targets and weights, as kernels read them.

    Arrays are kept alive and must not change. `y` is (n,) or (n, width) in the
    model's dtype, `weight` (n,) or None; both are in the order of the
    one batch that is made if `picked`, else in the block's.
    """

    @staticmethod
    def dense(values, y, weight=None, bint picked=False):
        """Make it from rows of a matrix of the dtype of ``y``; BYTES if they are not aligned."""
        cdef BlockRows block = _new(
            DENSE if values.flags.aligned else BYTES, values.shape[0], values.shape[1], y, weight,
            picked,
        )
        if values.dtype != y.dtype:
            raise ValueError(f"X must be {y.dtype} as y, got {values.dtype}")
        if values.size:
            contiguous_rows("X", values.shape[1], values.strides[1], values.itemsize)
        block.rows.stride = values.strides[0]
        if block.rows.kind == DENSE:
            block.rows.stride //= values.itemsize
        block.rows.values = _address(values)
        block._arrays += (values,)
        return block

    @staticmethod
    def csr(data, indices, indptr, n_features, y, weight=None, bint picked=False):
        """Make it from rows in CSR form, with ``data`` of the dtype of ``y``."""
        cdef BlockRows block = _new(
            CSR if indices.itemsize == 4 else CSR_WIDE, indptr.shape[0] - 1, n_features, y, weight,
            picked,
        )
        _check("data", data, y.dtype)
        _check("indices", indices, "i4" if indices.itemsize == 4 else "i8")
        _check("indptr", indptr, indices.dtype)
        same_length("indices", indices.shape[0], data.shape[0])
        block.rows.values = _address(data)
        block.rows.indices = _address(indices)
        block.rows.indptr = _address(indptr)
        block._arrays += (data, indices, indptr)
        if DPS_DEBUG:
            _look_at_indices(&block.rows, data.shape[0])
        return block

    @staticmethod
    def columns(ColumnTable table, y, weight=None):
        """Make it from columns of any numeric type."""
        cdef BlockRows block = _new(
            COLUMNS, table.length, table.width, y, weight, False
        )
        block.rows.columns = table.columns
        block._arrays += (table,)
        return block

    def __len__(self):
        return self.rows.length


cdef class KeyedRows(KeyList):
    """The keys of a batch, and its CSR rows with positions among these keys as columns."""

    def __cinit__(self, Py_ssize_t size, *args):
        self.values, self.places, self.starts = Buffer(), Buffer(), Buffer()

    cdef void begin_rows(self) noexcept nogil:
        """Forget the rows; the keys stay."""
        self.n_rows = self.n_taken = self.n_stored = 0

    cdef Rows take(self, Py_ssize_t m) noexcept nogil:
        """Return the next m rows without their targets."""
        cdef Rows rows
        rows.kind = CSR
        rows.values, rows.indices = self.values.at, self.places.at
        rows.indptr = <int*> self.starts.at + self.n_taken
        self.n_taken += m
        return rows


cdef inline void _fetch(const char* first, const char* last) noexcept nogil:
    while first < last:
        dps_prefetch(first)
        first += LINE


cdef int _touch(
    const floating* x, const index_t* indices, const index_t* indptr, const int64_t* order,
    Py_ssize_t start, Py_ssize_t m, Py_ssize_t ahead, int64_t flip, KeyedRows laid,
) except -1 nogil:
    """Copy rows to ``laid``, with positions of keys in place of columns.

    ``flip`` is -1 if columns are ids, whose keys are negative, else 0.
    """
    cdef Py_ssize_t i, row, first, n, p, stored = laid.n_stored
    cdef Py_ssize_t reach = start + m + ahead
    cdef int* starts = <int*> laid.starts.fit((laid.n_rows + m + 1) * sizeof(int)) + laid.n_rows
    cdef floating* values
    cdef int* places
    cdef Keys keys
    for i in range(start, start + m):
        row = order[i] if order is not NULL else i
        first, n = indptr[row], indptr[row + 1] - indptr[row]
        if stored + n > INT_MAX:
            with gil:
                raise ValueError(f"a batch has more than {INT_MAX} stored values: make it smaller")
        need(&laid.keys, n)
        values = <floating*> laid.values.fit((stored + n) * sizeof(floating)) + stored
        places = <int*> laid.places.fit((stored + n) * sizeof(int)) + stored
        keys = laid.keys  # the compiler must assume that writes may change it
        for p in range(n):
            values[p] = x[first + p]
            places[p] = <int> touch_key(&keys, <int64_t> indices[first + p] ^ flip)
        laid.keys = keys
        starts[i - start] = <int> stored
        stored += n
        if order is not NULL:  # scattered rows
            if i + 2 * SOON < reach:
                dps_prefetch(indptr + order[i + 2 * SOON])
            if i + SOON < reach:
                row = order[i + SOON]
                _fetch(<const char*> (x + indptr[row]), <const char*> (x + indptr[row + 1]))
                _fetch(
                    <const char*> (indices + indptr[row]), <const char*> (indices + indptr[row + 1])
                )
    starts[m] = <int> stored
    laid.n_stored = stored
    laid.n_rows += m
    return 0


cdef class Gradient:
    """The interface of a model's kernel, which adds the gradient of a batch to a sum.

    A batch is `begin`, some calls of `add`, and `finish`, all at the same parameters.
    """

    def __cinit__(self, *args, **options):
        self.key_width = 1

    cdef void begin(self, uint64_t key) noexcept nogil:
        """Begin a batch, whose random draws depend on ``key``."""

    cdef double finish(self, const void* params, void* out) noexcept nogil:
        """Add the remaining rows of the batch; return the sum of their losses."""
        return 0

    cdef double add(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, const void* params, void* out,
    ) noexcept nogil:
        """Add the gradient at ``params`` to ``out``, both of ``size``; return the sum of losses.

        The order continues for ``ahead`` rows after the m, which are likely to come next.
        """
        return 0

    cdef int touch(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, KeyedRows keys,
    ) except -1 nogil:
        """Add sparse rows to the batch, with the keys that they touch.

        A column's number is its key, or its id in a table. ``n_always`` keys from ``first_always``
        on are touched first, by any batch.
        """
        cdef int64_t flip = -1 if self.tabled else 0
        cdef Py_ssize_t i
        if m:
            need(&keys.keys, self.n_always)
            for i in range(self.first_always, self.first_always + self.n_always):
                touch_key(&keys.keys, i)
        if rows.kind == CSR and self.single:
            return _touch(
                <const float*> rows.values, <const int*> rows.indices, <const int*> rows.indptr,
                order, start, m, ahead, flip, keys,
            )
        if rows.kind == CSR:
            return _touch(
                <const double*> rows.values, <const int*> rows.indices, <const int*> rows.indptr,
                order, start, m, ahead, flip, keys,
            )
        if self.single:
            return _touch(
                <const float*> rows.values, <const int64_t*> rows.indices,
                <const int64_t*> rows.indptr, order, start, m, ahead, flip, keys,
            )
        return _touch(
            <const double*> rows.values, <const int64_t*> rows.indices,
            <const int64_t*> rows.indptr, order, start, m, ahead, flip, keys,
        )

    cdef double add_touched(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, KeyedRows keys, const void* params, void* out,
    ) noexcept nogil:
        """Add the gradient of touched rows, in the order in which they were touched.

        ``params`` and ``out`` have ``key_width`` elements per key, side by side.
        """
        return 0

    cdef void raw_touched(
        self, KeyedRows keys, Py_ssize_t m, const void* params, void* out
    ) noexcept nogil:
        """Write the raw outputs of the next m rows that have been touched; ``params`` as above."""

    cdef void round(self, double width, bint gap) noexcept nogil:
        """Round the kinks of the loss from now on, see `LossKernel`; 0: no longer."""

    cdef int check(self, BlockRows block) except -1:
        """Raise if the block does not suit the model."""
        if self.single != block.rows.single:
            raise ValueError(f"y must be {'float32' if self.single else 'float64'} as the model is")
        return 0

    cdef BlockRows rows_of(self, block):
        """Return the rows of a block, or of an object that has them."""
        cdef BlockRows rows = block if isinstance(block, BlockRows) else block.for_kernels
        self.check(rows)
        return rows

    cdef int reraise(self) except -1:
        """Raise the exception that `add` has raised."""
        return 0

    cdef Py_ssize_t _limit(
        self, BlockRows block, const int64_t[::1] order, Py_ssize_t start, Py_ssize_t stop
    ) except -1:
        """Return the number of rows that may be selected, after checking the selection."""
        cdef Py_ssize_t limit = block.rows.length if order is None else order.shape[0]
        self.check(block)
        if not 0 <= start <= stop <= limit:
            raise ValueError(f"[{start}, {stop}) is not inside {limit} rows")
        if DPS_DEBUG and order is not None and limit:
            indices_below("order", &order[0], limit, block.rows.length)
        return limit

    def touch_batch(
        self, BlockRows block, order, Py_ssize_t start, Py_ssize_t stop, KeyedRows keys
    ):
        """Put CSR rows `order[start:stop]`, or `start:stop`, into `keys`, with what they touch.

        If `keyed` is true, a gradient of rows of a sparse block has these keys only.
        """
        cdef const int64_t[::1] picks = order
        cdef Py_ssize_t limit = self._limit(block, picks, start, stop)
        keys.begin_rows()
        if start < stop:
            self.touch(
                &block.rows, NULL if order is None else &picks[0], start, stop - start,
                limit - stop, keys,
            )

    def raw_touched_batch(self, KeyedRows keys, params, out):
        """Write the raw outputs of the rows of the last `touch_batch`, at its keys."""
        cdef Py_ssize_t m = keys.n_rows - keys.n_taken
        cdef const char* at
        cdef char* target
        for name, array in (("params", params), ("out", out)):
            _check(name, array, "f4" if self.single else "f8")
        same_length("params", params.shape[0], keys.keys.count * self.key_width)
        same_length("out", out.shape[0], m)
        at = _address(params)
        target = <char*> _address(out)
        if m:
            with nogil:
                self.raw_touched(keys, m, at, target)

    def add_batch(
        self, BlockRows block, order, Py_ssize_t start, Py_ssize_t stop, params, out,
        uint64_t key=0,
    ):
        """Add the gradient of rows `order[start:stop]`, or `start:stop`; return the sum of losses.

        The model's random draws depend on `key`.
        """
        cdef const int64_t[::1] picks = order
        cdef Py_ssize_t limit = self._limit(block, picks, start, stop)
        cdef double loss
        cdef const int64_t* chosen = NULL
        cdef const char* at
        cdef char* target
        dtype = "f4" if self.single else "f8"
        for name, array in (("params", params), ("out", out)):
            _check(name, array, dtype)
            same_length(name, array.shape[0], self.size)
        if not out.flags.writeable:
            raise ValueError("out must be writeable")
        if block.rows.picked:
            same_length("y", block._arrays[0].shape[0], stop - start)
        if start == stop:
            return 0.0
        if order is not None:
            chosen = &picks[0]
        at = _address(params)
        target = <char*> _address(out)
        with nogil:
            self.begin(key)
            loss = self.add(
                &block.rows, chosen, start, stop - start, limit - stop, at, target
            )
            loss += self.finish(at, target)
        self.reraise()
        return loss
