"""A step of L-BFGS over all ranks: sums, their mean, and the next point.

Rank 0's `Search` minimises the mean loss with its penalty, and decides when no gain is left. Kinks
of a loss are rounded, less and less (Nesterov, 2005), until the rounding provably matters little.
"""
from cython cimport floating
from libc.math cimport INFINITY
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy, memset

import numpy as np

from dps._kernels.checks cimport same_length, vector_of
from dps._kernels.coordinates cimport Coordinates
from dps.training.lbfgs.quasi_newton cimport LBFGS
from dps._kernels.reduce cimport is_finite
from dps._kernels.rows cimport Gradient
from dps._runtime.shared.activity cimport COMPUTE
from dps._runtime.wire.message cimport NOTES, RAN
from dps.training.lbfgs.passes cimport Pass
from dps._runtime.step cimport Step

from dps._runtime.step import ENDINGS as STEP_ENDINGS

cdef extern from "vectors.h" nogil:
    double dps_weighted_squares(const double* w, const double* x, Py_ssize_t n) noexcept
    void dps_add_weighted(
        double* out, const double* x, const double* w, const double* at, Py_ssize_t n
    ) noexcept

# Ratio of a pass's gain that counts to the gain that another one must promise.
cdef double OF_A_PASS = 10
cdef double NARROWER = 10  # ratio of consecutive widths of the rounding
# Least width as a share of the first; below it only rounding errors remain.
cdef double NARROWEST = 1e-7
# Multiple of the tolerance at first, since a wide rounding is only a start.
cdef double ROUGHLY = 1000

cdef enum:
    BAD_START = 100

# How a `DescentStep` ends.
ENDINGS = {**STEP_ENDINGS, BAD_START: "start"}


cdef void _widen(double* out, const floating* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = x[i]


cdef void _narrow(floating* out, double* x, Py_ssize_t n) noexcept nogil:
    """Round to the model's type; the rounded number is the one that counts."""
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = <floating> x[i]
        x[i] = out[i]


cdef class Search:
    """L-BFGS on a penalised mean loss, from sums over all ranks.

    start: (n,) float32 or float64 array, the parameters to begin at; all others have its dtype.
    coordinates: where steps are taken.
    penalty: (n,) float64 array, the objective has half the sum of its products with the squares of
        the parameters.
    tolerance: the gain in the objective that another pass must promise.
    precision: relative error of the sums.
    least: a gain in the objective that counts.
    patience: accepted steps in a row of less than that which are enough.
    relative: the gain that another pass must promise as a share of the objective, where that is
        less.
    l1: (n,) float64 array, the objective has the sum of its products with the sizes of the
        parameters.
    width: that of the parabolas that stand for kinks of the loss at first; 0: it has none.
    near: the share of the objective that these may take in the end, as is proven, see `LossKernel`.
    width: that of the parabolas at the point that is looked at next.
    gap: whether what they take is to be given to `observe`, in place of the loss.
    """

    cdef readonly bint enough
    cdef readonly double width  # width of the rounded kinks
    cdef readonly bint gap  # whether the gap of the rounding is evaluated in place of the loss
    cdef Coordinates coordinates
    cdef LBFGS search
    cdef Py_ssize_t size
    cdef bint single
    cdef object _vectors        # keeps the memory alive
    cdef double* penalty        # factors of the squares of parameters, halved
    cdef double* at  # the parameters of the next evaluation
    cdef double* slope  # their gradient
    cdef double* turned  # the gradient in coordinates
    cdef double tolerance
    cdef double least
    cdef double best
    cdef double first_width
    cdef double near
    cdef double relative
    cdef double rows
    cdef double share
    cdef Py_ssize_t patience
    cdef Py_ssize_t idle

    def __init__(
        self, start, Coordinates coordinates, penalty, double tolerance, double precision,
        double least, Py_ssize_t patience, *, double relative=INFINITY, l1=None, double width=0,
        double near=0,
    ):
        cdef double* vectors
        same_length("start", start.size, coordinates.size)
        self.size = coordinates.size
        self.single = start.dtype == np.float32
        self._vectors = np.zeros((4, self.size))
        self._vectors[0] = penalty
        self._vectors[1] = start
        vectors = <double*> <uintptr_t> self._vectors.ctypes.data
        self.penalty, self.at = vectors, vectors + self.size
        self.slope, self.turned = vectors + 2 * self.size, vectors + 3 * self.size
        self.coordinates = coordinates
        # Coordinates scale each parameter, and mix only parameters without such a penalty.
        weights = None if l1 is None else coordinates.gradient(l1)
        point = coordinates.point(self._vectors[1])
        self.search = LBFGS(point, tolerance, precision, relative, weights)
        self.first_width, self.near, self.relative = width, near, relative
        self.tolerance = tolerance
        self.least = least
        self.patience = patience

    def resume(self, double rows, double share):
        """Continue from the best point, or begin, on one row in `share`, `rows` in all.

        The next values are for that point; at the beginning for the one that `write` gives.
        """
        if not (rows > 0 and share > 0):
            raise ValueError(f"nothing can be learned of {rows} rows, one of each {share}")
        self.rows, self.share = rows, share
        self.search.resume(share * self.tolerance)
        self.width, self.gap = self.first_width, False
        self._set_pace()
        self.best = INFINITY
        self.idle = 0
        self.enough = False

    def observe(self, double total, mean):
        """Take in the sum of losses and the mean gradient at the point; True if it is the best.

        `total` is infinite or NaN, and `mean` None, if there is no value.
        """
        cdef const char* given = NULL
        if mean is not None:
            given = self._look_at("mean", mean)
        return bool(self.take(total, given))

    def write(self, out):
        """Write the parameters of the next evaluation, (n,)."""
        self.put(self._look_at("out", out))

    cdef char* _look_at(self, str name, array) except? NULL:
        return vector_of(name, array, "float32" if self.single else "float64", self.size)

    cdef int take(self, double total, const char* mean) except -1 nogil:
        """Native `observe`; NULL without a gradient."""
        cdef double value, least
        cdef double* gradient = NULL
        cdef bint accepted = False
        if self.gap:
            self._narrow_down(total / self.rows)
            return False
        if not self.search.converged:
            value = (
                total / self.rows + dps_weighted_squares(self.penalty, self.at, self.size) / 2
            )
            if mean is not NULL:
                gradient = self.turned
                if self.single:
                    _widen(self.turned, <const float*> mean, self.size)
                else:
                    _widen(self.turned, <const double*> mean, self.size)
                dps_add_weighted(self.slope, self.turned, self.penalty, self.at, self.size)
                self.coordinates.to_gradient(self.slope, gradient)
            accepted = self.search.take(value, gradient)
            value = self.search.value
            if accepted and not self.search.extending:  # the length of the step is right
                least = min(self.share * self.least, OF_A_PASS * self.search.worthwhile())
                if self.least == -INFINITY and self.tolerance > 0:
                    # Last digits decide which coefficients are zero, but passes may promise more
                    # than digits show.
                    least = self.search.precision * abs(value)
                self.idle = 0 if value <= self.best - least else self.idle + 1
                self.best = min(self.best, value)
        self.enough = self.search.converged or self.idle >= self.patience
        if self.first_width > 0 and self.share == 1:
            if self.width == 0:  # the loss itself, after the last search has ended
                self.enough = True
            elif self.enough:
                self.enough, self.gap = False, True
                self.search.restart()
        return accepted

    cdef void _narrow_down(self, double gap) noexcept nogil:
        """Continue from the best point with narrower parabolas, or with none if that is close."""
        self.gap = False
        self.width /= NARROWER
        if gap <= self.near * abs(self.best) or self.width < NARROWEST * self.first_width:
            self.width = 0
        self._set_pace()
        self.best = INFINITY
        self.idle = 0

    cdef void _set_pace(self) noexcept nogil:
        """Set the tolerance: the wider the rounding, the sooner a search ends."""
        cdef double narrow = self.width / self.first_width if self.first_width > 0 else 0
        self.search.relative = self.relative * max(1.0, ROUGHLY * narrow)

    cdef void put(self, char* out) noexcept nogil:
        """Native `write`."""
        self.coordinates.to_params(self.search.next, self.at)
        if self.single:
            _narrow(<float*> out, self.at, self.size)
        else:
            _narrow(<double*> out, self.at, self.size)


cdef class DescentStep:
    """A rank's steps; `search` is used on rank 0 only.

    ranks: the steps of this rank, which nothing else uses meanwhile.
    point: (n,) array, where the rows are looked at, of the search's dtype; afterwards the next one.
    best: (n,) array, where the best point is put whenever there is a new one.
    """

    cdef readonly double loss
    cdef readonly bint accepted
    cdef readonly bint enough
    cdef Pass rows
    cdef Step ranks
    cdef Search search
    cdef Py_ssize_t size
    cdef Py_ssize_t itemsize
    cdef bint begun
    cdef list _arrays           # keeps the memory alive
    cdef char* point
    cdef char* best
    cdef char* ahead

    def __init__(self, Pass rows, Step ranks, Search search, point, best):
        self.rows = rows
        self.ranks = ranks
        self.search = search
        cdef Gradient gradient = rows.sum.gradient
        if not gradient.single == ranks.single == search.single:
            raise ValueError("the gradient, the ranks' steps and the search are of different types")
        for name, size in (("rows", gradient.size), ("ranks", ranks.size)):
            same_length(name, size, search.size)
        self.size = search.size
        self.itemsize = 4 if search.single else 8
        self.point = search._look_at("point", point)
        self.best = search._look_at("best", best)
        gradient.round(search.width, search.gap)
        ahead = np.empty_like(point)
        self.ahead = <char*> <uintptr_t> ahead.ctypes.data
        self._arrays = [point, best, ahead]

    def run(self):
        """Take a step; return how it ended. `start` means that there is no value at the start."""
        cdef int status
        with nogil:
            status = self._run()
        return ENDINGS[status]

    cdef int _run(self) except -1 nogil:
        cdef double notes[NOTES]
        cdef double total
        cdef char* gradient = self.rows.sum.part
        cdef bint accepted = False, finite
        cdef int status
        memset(notes, 0, sizeof(notes))
        self.rows.run(self.point)
        self.loss = notes[0] = self.rows.sum.loss
        self.ranks.activity.spend(COMPUTE, -1)
        self.ranks.activity.step(self.rows.count, self.rows.count, self.loss)
        if not (self.loss - self.loss == 0 and self._is_finite(gradient)):
            notes[0] = INFINITY  # no rank has a value here
            memset(gradient, 0, self.size * self.itemsize)
        status = self.ranks.mean(gradient, self.rows.count, notes)
        if status != RAN:
            return status
        total = self.ranks.notes[0]
        finite = total - total == 0
        if not (finite or self.begun):
            return BAD_START
        self.begun = True
        if self.ranks.rank == 0:
            accepted = self.search.take(total, self.ranks.total if finite else NULL)
            self.search.put(self.ahead)
        notes[0], notes[1] = accepted, self.search.enough
        notes[2], notes[3] = self.search.width, self.search.gap
        status = self.ranks.broadcast(self.ahead if self.ranks.rank == 0 else NULL, notes)
        if status != RAN:
            return status
        self.accepted = self.ranks.notes[0] != 0
        self.enough = self.ranks.notes[1] != 0
        self.rows.sum.gradient.round(self.ranks.notes[2], self.ranks.notes[3] != 0)
        if self.accepted:
            memcpy(self.best, self.point, self.size * self.itemsize)
        memcpy(self.point, self.ranks.total, self.size * self.itemsize)
        return RAN

    cdef bint _is_finite(self, const char* gradient) noexcept nogil:
        if self.itemsize == 4:
            return is_finite(<const float*> gradient, self.size)
        return is_finite(<const double*> gradient, self.size)
