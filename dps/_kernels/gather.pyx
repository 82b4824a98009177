"""Rows of columns of any numeric dtype, as a contiguous block of a floating dtype.

Columns of a dataframe are converted batch by batch. They may have any stride, and be read-only and
unaligned.
"""
from cython cimport floating
from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
)
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from dps._kernels.checks cimport DPS_DEBUG, indices_below, same_length

cdef enum:
    BLOCK = 64  # rows whose outputs stay in the first-level cache while columns take turns

ctypedef fused source_t:
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t
    float
    double

cdef tuple CODES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"
)


cdef inline void _fill(
    source_t example, const Column* column, const int64_t* order, Py_ssize_t start, Py_ssize_t n,
    floating* out, Py_ssize_t width,
) noexcept nogil:
    """Write n elements of a column with the type of ``example``, ``width`` apart."""
    cdef Py_ssize_t i, row
    cdef source_t value = example
    for i in range(n):
        row = order[start + i] if order is not NULL else start + i
        # The element may be unaligned; the compiler makes this a single load.
        memcpy(&value, column.data + row * column.stride, sizeof(source_t))
        out[i * width] = <floating> value


cdef void _fill_any(
    const Column* column, const int64_t* order, Py_ssize_t start, Py_ssize_t n,
    floating* out, Py_ssize_t width,
) noexcept nogil:
    if column.code == 0:
        _fill(<int8_t> 0, column, order, start, n, out, width)
    elif column.code == 1:
        _fill(<int16_t> 0, column, order, start, n, out, width)
    elif column.code == 2:
        _fill(<int32_t> 0, column, order, start, n, out, width)
    elif column.code == 3:
        _fill(<int64_t> 0, column, order, start, n, out, width)
    elif column.code == 4:
        _fill(<uint8_t> 0, column, order, start, n, out, width)
    elif column.code == 5:
        _fill(<uint16_t> 0, column, order, start, n, out, width)
    elif column.code == 6:
        _fill(<uint32_t> 0, column, order, start, n, out, width)
    elif column.code == 7:
        _fill(<uint64_t> 0, column, order, start, n, out, width)
    elif column.code == 8:
        _fill(<float> 0, column, order, start, n, out, width)
    else:
        _fill(<double> 0, column, order, start, n, out, width)


cdef void fill_rows(
    const Column* columns, Py_ssize_t width, const int64_t* order, Py_ssize_t start,
    Py_ssize_t n, floating* out,
) noexcept nogil:
    """out[i, j] = column j at row order[start + i], or start + i; for i < n."""
    cdef Py_ssize_t block = 0, size, j
    while block < n:
        size = min(<Py_ssize_t> BLOCK, n - block)
        for j in range(width):
            _fill_any(&columns[j], order, start + block, size, out + block * width + j, width)
        block += BLOCK


cdef class ColumnTable:
    """Columns of equal length, as a source of blocks of rows; the arrays are kept alive."""

    def __cinit__(self, columns):
        cdef Py_ssize_t j
        self._arrays = tuple(columns)
        self.width = len(self._arrays)
        self.length = self._arrays[0].shape[0] if self.width else 0
        self.columns = <Column*> calloc(max(self.width, 1), sizeof(Column))
        if self.columns is NULL:
            raise MemoryError
        for j, array in enumerate(self._arrays):
            if array.ndim != 1:
                raise ValueError(f"column {j} has {array.ndim} dimensions, expected 1")
            same_length(f"column {j}", array.shape[0], self.length)
            name = "uint8" if array.dtype.name == "bool" else array.dtype.name
            if name not in CODES or not array.dtype.isnative:
                raise TypeError(
                    f"column {j} has dtype {array.dtype!r}, expected bool, an integer or a float "
                    "of 4 or 8 bytes in native byte order"
                )
            self.columns[j].data = <const char*> <uintptr_t> array.__array_interface__["data"][0]
            self.columns[j].stride = array.strides[0]
            self.columns[j].code = CODES.index(name)

    def __dealloc__(self):
        free(self.columns)

    def __len__(self):
        return self.length

    @property
    def n_columns(self):
        """Number of columns."""
        return self.width

    def __reduce__(self):
        return ColumnTable, (self._arrays,)

    def rows(
        self, const int64_t[::1] order, Py_ssize_t start, Py_ssize_t stop, floating[:, ::1] out
    ):
        """out[i, j] = column j at row order[start + i], or start + i; for i < stop - start."""
        cdef Py_ssize_t n = stop - start, limit
        cdef const int64_t* picks = NULL
        limit = self.length if order is None else order.shape[0]
        if not 0 <= start <= stop <= limit:
            raise ValueError(f"[{start}, {stop}) is not inside {limit} rows")
        if out.shape[0] < n:
            raise ValueError(f"out has {out.shape[0]} rows, expected at least {n}")
        same_length("rows of out", out.shape[1], self.width)
        if n == 0 or self.width == 0:
            return
        if order is not None:
            picks = &order[0]
            if DPS_DEBUG:
                indices_below("order", picks, limit, self.length)
        with nogil:
            fill_rows(self.columns, self.width, picks, start, n, &out[0, 0])
