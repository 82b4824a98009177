"""Columns of a dataframe, as numbers and codes, converted to CSR rows in one pass.

Owns the order of stored values in a row, which is that of the pieces added, and the mixing of
hashes for interactions. Rows are worked off in blocks: codes are looked up column by column, then a
block's rows are put together in cache.
"""
from cython cimport floating
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc

import numpy as np

from dps._kernels.checks cimport DPS_DEBUG, index_t, same_length
from dps._kernels.gather cimport ColumnTable, fill_rows

cdef enum:
    BLOCK = 256  # rows whose codes stay in the first-level cache

cdef enum Kind:
    NUMBER, CODES, CROSS, BAGS, SEQUENCE

ctypedef fused code_t:
    int8_t
    int16_t
    int32_t

# The stored values of a row for a column, or for several. Codes begin at -1, so tables begin one
# earlier.
cdef extern from "mix.h" nogil:
    uint64_t dps_mix(uint64_t x)

cdef struct Piece:
    Kind kind
    Py_ssize_t place  # position among the numbers, or among the codes that are looked up
    int32_t first  # column of the first value
    double fill  # replaces NaN
    bint indicator  # whether NaN also sets the next column
    const int32_t* table  # column of each code; -1: none
    const int64_t* starts  # first code of each row's bag
    const int32_t* tokens
    const double* values  # values of tokens, from -1 on
    Py_ssize_t most  # largest number of tokens per sequence
    Member* members
    Py_ssize_t n_members
    uint64_t buckets

cdef struct Member:
    const char* codes
    int code_size
    const uint64_t* hashes


cdef inline void _look_up(
    const code_t* codes, const int32_t* table, Py_ssize_t n, int32_t* out
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = table[codes[i] + 1]


cdef inline void _mix_in(
    const code_t* codes, const uint64_t* hashes, Py_ssize_t n, uint64_t* mixed, int32_t* out
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if codes[i] < 0:
            out[i] = -1
        else:
            mixed[i] = dps_mix(mixed[i] + hashes[codes[i]])


cdef void _look_up_any(
    const Member* column, const int32_t* table, Py_ssize_t start, Py_ssize_t n, int32_t* out
) noexcept nogil:
    if column.code_size == 1:
        _look_up(<const int8_t*> column.codes + start, table, n, out)
    elif column.code_size == 2:
        _look_up(<const int16_t*> column.codes + start, table, n, out)
    else:
        _look_up(<const int32_t*> column.codes + start, table, n, out)


cdef void _cross(
    const Piece* piece, Py_ssize_t start, Py_ssize_t n, uint64_t* mixed, int32_t* out
) noexcept nogil:
    """Compute the bucket of each row's combination of codes, or -1 if one is missing."""
    cdef Py_ssize_t i, m
    cdef const Member* member
    for i in range(n):
        mixed[i] = 0
        out[i] = 0
    for m in range(piece.n_members):
        member = &piece.members[m]
        if member.code_size == 1:
            _mix_in(<const int8_t*> member.codes + start, member.hashes, n, mixed, out)
        elif member.code_size == 2:
            _mix_in(<const int16_t*> member.codes + start, member.hashes, n, mixed, out)
        else:
            _mix_in(<const int32_t*> member.codes + start, member.hashes, n, mixed, out)
    for i in range(n):
        if out[i] == 0:
            out[i] = piece.first + <int32_t> (mixed[i] % piece.buckets)


cdef void _prepare(
    const Piece* piece, Py_ssize_t start, Py_ssize_t n, uint64_t* mixed, int32_t* looked_up
) noexcept nogil:
    """Look up the codes of a block of rows, if the piece has codes."""
    if piece.kind == CODES:
        _look_up_any(
            &piece.members[0], piece.table, start, n, looked_up + piece.place * BLOCK
        )
    elif piece.kind == CROSS:
        _cross(piece, start, n, mixed, looked_up + piece.place * BLOCK)


cdef Py_ssize_t _store(
    const Piece* pieces, Py_ssize_t n_pieces, Py_ssize_t start, Py_ssize_t n,
    const floating* numbers, Py_ssize_t n_numbers, const int32_t* looked_up,
    index_t* indices, floating* data, index_t* indptr, Py_ssize_t at,
) noexcept nogil:
    """Append the rows of a block to ``at`` stored values; return the new number."""
    cdef Py_ssize_t i, p, t
    cdef const Piece* piece
    cdef floating value
    cdef int32_t column
    for i in range(n):
        indptr[i] = <index_t> at
        for p in range(n_pieces):
            piece = &pieces[p]
            if piece.kind == NUMBER:
                value = numbers[i * n_numbers + piece.place]
                indices[at] = piece.first
                if value == value:
                    data[at] = value
                    at += 1
                else:
                    data[at] = <floating> piece.fill
                    at += 1
                    if piece.indicator:
                        indices[at] = piece.first + 1
                        data[at] = 1
                        at += 1
            elif piece.kind == BAGS:
                for t in range(piece.starts[start + i], piece.starts[start + i + 1]):
                    column = piece.table[piece.tokens[t] + 1]
                    if column >= 0:
                        indices[at] = column
                        data[at] = 1
                        at += 1
            elif piece.kind == SEQUENCE:
                column = piece.first
                for t in range(piece.starts[start + i], piece.starts[start + i + 1]):
                    if column == piece.first + piece.most:
                        break
                    if piece.tokens[t] >= 0:
                        indices[at] = column
                        data[at] = <floating> piece.values[piece.tokens[t]]
                        column += 1
                        at += 1
            else:
                column = looked_up[piece.place * BLOCK + i]
                if column >= 0:
                    indices[at] = column
                    data[at] = 1
                    at += 1
    indptr[n] = <index_t> at
    return at


cdef const char* _address(array):
    return <const char*> <uintptr_t> array.__array_interface__["data"][0]


cdef class RowEncoder:
    """Pieces of rows, in the order in which they are stored in CSR.

    Codes are int8, int16 or int32 and begin at -1, which stands for a missing value; `table`
    (int32) says the column of each, from -1 on.
    """

    cdef Piece* pieces
    cdef Py_ssize_t n_pieces, n_looked_up, most, n_tokens
    cdef readonly Py_ssize_t n_rows
    cdef ColumnTable numbers
    cdef list arrays

    def __cinit__(self, Py_ssize_t n_rows, ColumnTable numbers):
        if numbers.width:
            same_length("numbers", numbers.length, n_rows)
        self.n_rows = n_rows
        self.numbers = numbers
        self.arrays = []

    def __dealloc__(self):
        cdef Py_ssize_t p
        for p in range(self.n_pieces):
            free(self.pieces[p].members)
        free(self.pieces)

    cdef Piece* _add(self, Kind kind, Py_ssize_t n_members) except NULL:
        cdef Piece* grown = <Piece*> realloc(self.pieces, (self.n_pieces + 1) * sizeof(Piece))
        cdef Piece* piece
        if grown is NULL:
            raise MemoryError
        self.pieces = grown
        piece = &grown[self.n_pieces]
        piece.kind = kind
        piece.n_members = n_members
        piece.members = <Member*> calloc(max(n_members, 1), sizeof(Member))
        if piece.members is NULL:
            raise MemoryError
        self.n_pieces += 1
        return piece

    def _codes(self, codes, Py_ssize_t n_values):
        codes = np.require(codes, requirements="CA")
        if codes.dtype not in (np.int8, np.int16, np.int32):
            raise TypeError(f"codes have dtype {codes.dtype}, expected int8, int16 or int32")
        same_length("codes", codes.shape[0], self.n_rows)
        if DPS_DEBUG:
            _check_codes(codes, n_values)
        return codes

    def add_number(self, Py_ssize_t place, int32_t first, double fill, bint indicator):
        """A column of ``numbers``; NaN becomes ``fill``, and 1 in the next column if wanted."""
        cdef Piece* piece
        if not 0 <= place < self.numbers.width:
            raise IndexError(f"there is no column {place} among {self.numbers.width}")
        piece = self._add(NUMBER, 0)
        piece.place, piece.first, piece.fill, piece.indicator = place, first, fill, indicator
        self.most += 1 + indicator

    def add_codes(self, codes, table):
        """A 1 in column ``table[code + 1]``; none where that is negative."""
        cdef Piece* piece
        table = np.require(table, np.int32, "CA")
        codes = self._codes(codes, len(table) - 1)
        piece = self._add(CODES, 1)
        self.arrays += [table, codes]
        piece.table = <const int32_t*> _address(table)
        piece.members[0].codes, piece.members[0].code_size = _address(codes), codes.itemsize
        piece.place = self.n_looked_up
        self.n_looked_up += 1
        self.most += 1

    def add_cross(self, columns, hashes, int32_t first, Py_ssize_t buckets):
        """A 1 in the bucket of the mixed hashes of several columns' codes; none if one is -1."""
        cdef Piece* piece
        cdef Py_ssize_t m
        same_length("hashes", len(hashes), len(columns))
        if buckets < 1:
            raise ValueError(f"there must be a bucket, got {buckets}")
        hashes = [np.require(values, np.uint64, "CA") for values in hashes]
        lengths = [len(values) for values in hashes]
        columns = [self._codes(codes, n) for codes, n in zip(columns, lengths, strict=True)]
        piece = self._add(CROSS, len(columns))
        self.arrays += columns + hashes
        for m in range(piece.n_members):
            piece.members[m].codes = _address(columns[m])
            piece.members[m].code_size = columns[m].itemsize
            piece.members[m].hashes = <const uint64_t*> _address(hashes[m])
        piece.first, piece.buckets = first, buckets
        piece.place = self.n_looked_up
        self.n_looked_up += 1
        self.most += 1

    cdef Piece* _add_lists(self, Kind kind, starts, tokens, Py_ssize_t n_values) except NULL:
        """A piece of several tokens a row."""
        cdef Piece* piece
        starts = np.require(starts, np.int64, "CA")
        tokens = np.require(tokens, np.int32, "CA")
        same_length("starts", starts.shape[0], self.n_rows + 1)
        if starts[0] < 0 or starts[self.n_rows] > tokens.shape[0]:
            raise ValueError(f"starts are not inside {tokens.shape[0]} tokens")
        if DPS_DEBUG:
            _check_codes(tokens, n_values)
            if (np.diff(starts) < 0).any():
                raise IndexError("starts go down")
        piece = self._add(kind, 0)
        self.arrays += [starts, tokens]
        piece.starts = <const int64_t*> _address(starts)
        piece.tokens = <const int32_t*> _address(tokens)
        self.n_tokens += starts[self.n_rows] - starts[0]
        return piece

    def add_bags(self, starts, tokens, table):
        """A 1 in column ``table[token + 1]`` for each token ``starts[row]:starts[row + 1]``."""
        cdef Piece* piece
        table = np.require(table, np.int32, "CA")
        piece = self._add_lists(BAGS, starts, tokens, len(table) - 1)
        self.arrays.append(table)
        piece.table = <const int32_t*> _address(table)

    def add_sequence(self, starts, tokens, values, int32_t first, Py_ssize_t most):
        """`values[token]` of a row's tokens, side by side from column `first` on, at most `most`.

        Tokens below 0 are none.
        """
        cdef Piece* piece
        values = np.require(values, np.float64, "CA")
        piece = self._add_lists(SEQUENCE, starts, tokens, len(values))
        self.arrays.append(values)
        piece.values = <const double*> _address(values)
        piece.first, piece.most = first, most

    @property
    def bound(self):
        """Return the largest possible number of stored values."""
        return self.most * self.n_rows + self.n_tokens

    def encode(self, index_t[::1] indices, floating[::1] data, index_t[::1] indptr):
        """Write all rows as CSR; how many values are stored."""
        cdef Py_ssize_t n = self.n_rows, n_numbers = self.numbers.width
        cdef Py_ssize_t at = 0, start = 0, size, p
        cdef int32_t* looked_up
        cdef uint64_t* mixed
        cdef floating* room
        cdef index_t* columns
        cdef floating* values
        same_length("indptr", indptr.shape[0], n + 1)
        same_length("data", data.shape[0], indices.shape[0])
        if data.shape[0] < self.bound:
            raise ValueError(f"up to {self.bound} values need room, there is {data.shape[0]}")
        indptr[0] = 0
        if n == 0:
            return 0
        columns = &indices[0] if indices.shape[0] else NULL
        values = &data[0] if data.shape[0] else NULL
        looked_up = <int32_t*> malloc(max(self.n_looked_up, 1) * BLOCK * sizeof(int32_t))
        mixed = <uint64_t*> malloc(BLOCK * sizeof(uint64_t))
        room = <floating*> malloc(max(n_numbers, 1) * BLOCK * sizeof(floating))
        try:
            if looked_up is NULL or mixed is NULL or room is NULL:
                raise MemoryError
            with nogil:
                while start < n:
                    size = min(<Py_ssize_t> BLOCK, n - start)
                    if n_numbers:
                        fill_rows(self.numbers.columns, n_numbers, NULL, start, size, room)
                    for p in range(self.n_pieces):
                        _prepare(&self.pieces[p], start, size, mixed, looked_up)
                    at = _store(
                        self.pieces, self.n_pieces, start, size, room, n_numbers, looked_up,
                        columns, values, &indptr[start], at,
                    )
                    start += size
        finally:
            free(looked_up)
            free(mixed)
            free(room)
        return at


def _check_codes(codes, n_values):
    if len(codes) and not -1 <= codes.min() <= codes.max() < n_values:
        raise IndexError(f"codes from {codes.min()} to {codes.max()} are not in [-1, {n_values})")
