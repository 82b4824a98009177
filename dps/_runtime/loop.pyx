"""The loop of a replica: next batch, gradient, push, wait and pull.

It takes a batch from several blocks at once. The loop is entered once per group of blocks. It
acquires the interpreter only for waits of more than a second, and for calls that need it.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from dps._kernels.buffer cimport Buffer
from dps._kernels.checks cimport DPS_DEBUG, indices_below
from dps._kernels.keys cimport next_batch
from dps._kernels.rows cimport BlockRows, Gradient, KeyedRows, Rows
from dps._kernels.typed_ops cimport TypedOps, typed_ops
from dps._runtime.shared.activity cimport COMPUTE, PUSH
from dps._runtime.wire.message cimport RAN
from dps._runtime.step cimport Step

from dps._runtime.step import ENDINGS as STEP_ENDINGS

cdef enum:
    BAD_LOSS = 100

# Endings of `StepLoop.run`.
ENDINGS = {**STEP_ENDINGS, BAD_LOSS: "loss"}

cdef struct Part:
    const Rows* rows
    const int64_t* order  # or NULL: rows from `at` on
    Py_ssize_t at
    Py_ssize_t left
    Py_ssize_t share  # share of the current batch


cdef void _share(Part* parts, Py_ssize_t n, Py_ssize_t wanted, Py_ssize_t left) noexcept nogil:
    """Share ``wanted`` of ``left`` rows out in proportion to the rest of each part.

    Rows left by rounding go to the largest remainders, one each.
    """
    cdef Py_ssize_t p, best, short = wanted
    cdef int64_t largest, remainder
    for p in range(n):
        parts[p].share = parts[p].left * wanted // left
        short -= parts[p].share
    while short > 0:
        best, largest = -1, -1
        for p in range(n):
            remainder = parts[p].left * wanted % left
            # A part with more than the rounded share has had its row.
            if remainder > largest and parts[p].share == parts[p].left * wanted // left:
                best, largest = p, remainder
        parts[best].share += 1
        short -= 1


def shares(lefts, Py_ssize_t wanted):
    """Return the share of each part in `wanted` rows, in proportion to its rest.

    Rows left by rounding go to the largest remainders, one each.
    """
    cdef Py_ssize_t p, n = len(lefts)
    cdef Part* parts = <Part*> calloc(max(n, 1), sizeof(Part))
    if parts is NULL:
        raise MemoryError
    try:
        for p in range(n):
            parts[p].left = lefts[p]
        if wanted:
            _share(parts, n, wanted, sum(lefts))
        return [parts[p].share for p in range(n)]
    finally:
        free(parts)


cdef class StepLoop:
    """One rank's steps of an epoch."""

    cdef Gradient gradient
    cdef Step push
    cdef TypedOps numbers
    cdef Buffer _sum
    cdef char* grad
    cdef Py_ssize_t summed  # elements of the sum
    cdef KeyedRows keys  # None: gradients are whole vectors
    cdef double[::1] rates
    cdef Py_ssize_t rows
    cdef Py_ssize_t steps
    cdef readonly Py_ssize_t step
    cdef public Py_ssize_t until  # the step before which `run` returns
    cdef readonly list rest  # parts with rows that are left over
    cdef Py_ssize_t wanted  # rows that the batch still lacks
    cdef uint64_t key  # key of random draws in this epoch
    cdef readonly Py_ssize_t seen
    cdef readonly Py_ssize_t pushes
    cdef readonly Py_ssize_t skipped
    cdef Py_ssize_t first  # the next step; rows of earlier ones are skipped
    cdef readonly double loss

    def __init__(self, Gradient gradient, Step push):
        if gradient.single != push.single or gradient.size != push.size:
            raise ValueError("gradient and push are of different kinds")
        self.gradient = gradient
        self.push = push
        self.numbers = typed_ops(gradient.single)
        self.keys = push.keys
        if self.keys is not None and not gradient.keyed:
            raise ValueError("the gradient does not say what it touches")
        if self.keys is not None and gradient.key_width != push.key_map.width:
            raise ValueError(
                f"the gradient has keys of {gradient.key_width} elements, the push of "
                f"{push.key_map.width}"
            )
        self._sum = Buffer()
        gradient.owner = push, self._sum

    def begin(
        self, Py_ssize_t rows, double[::1] rates, uint64_t key=0, Py_ssize_t step=0,
        double loss=0, Py_ssize_t seen=0, Py_ssize_t pushes=0,
    ):
        """Begin an epoch of `rows` rows, with a learning rate for each step.

        The model's random draws depend on `key` and the step. An epoch that is resumed continues at
        `step`, with the sums of the earlier steps.
        """
        self.rows = rows
        self.key = key
        self.rates = rates
        self.steps = self.until = rates.shape[0]
        self.step, self.first = 0, step
        self.loss, self.seen, self.pushes, self.skipped = loss, seen, pushes, 0
        self.wanted = self._size(0)
        self._forget()

    @property
    def done(self):
        """True after the last step of the epoch."""
        return self.step == self.steps

    cdef Py_ssize_t _size(self, Py_ssize_t step) noexcept nogil:
        if step >= self.steps:
            return 0
        return self.rows * (step + 1) // self.steps - self.rows * step // self.steps

    def run(self, group):
        """Use parts of blocks, `(block, order or None, start, stop)`.

        It ends at step `until` at the latest; `rest` then has the unused parts.

        Returns "ran", or the reason why it stopped.
        """
        cdef Py_ssize_t n = len(group), p
        cdef Part* parts = <Part*> calloc(max(n, 1), sizeof(Part))
        cdef const int64_t[::1] picks
        cdef BlockRows rows
        cdef list kept = []
        cdef int status
        if parts is NULL:
            raise MemoryError
        try:
            for p in range(n):
                block, order, start, stop = group[p]
                rows = self.gradient.rows_of(block)
                kept.append(rows)
                parts[p].rows = &rows.rows
                limit = parts[p].rows.length
                if order is not None:
                    picks = order
                    limit = len(order)
                    if limit:
                        parts[p].order = &picks[0]
                        if DPS_DEBUG:
                            indices_below("order", parts[p].order, limit, parts[p].rows.length)
                if not 0 <= start <= stop <= limit:
                    raise ValueError(f"[{start}, {stop}) is not inside {limit} rows")
                parts[p].at = start
                parts[p].left = stop - start
            with nogil:
                status = self._run(parts, n)
            self.gradient.reraise()
            self.rest = []  # used parts must not stay in memory
            if self.until <= self.step < self.steps:
                self.rest = [
                    (block, order, parts[p].at, parts[p].at + parts[p].left)
                    for p, (block, order, _, _) in enumerate(group)
                ]
        finally:
            free(parts)
        return ENDINGS[status]

    cdef int _forget(self) except -1 nogil:
        """Begin a sum."""
        self.gradient.begin(self.key + self.step)
        self.summed = 0
        if self.keys is None:
            return self._lengthen(self.gradient.size)
        next_batch(&self.keys.keys)
        return self._lengthen(0)

    cdef int _lengthen(self, Py_ssize_t size) except -1 nogil:
        """Extend the sum to `size` elements; new ones are zero."""
        cdef Py_ssize_t itemsize = self.numbers.itemsize
        self.grad = self._sum.fit(size * itemsize)
        memset(self.grad + self.summed * itemsize, 0, (size - self.summed) * itemsize)
        self.summed = size
        return 0

    cdef int _add_by_keys(self, Part* parts, Py_ssize_t n) except -1 nogil:
        """Add the gradient of the parts' shares, by the keys that they touch."""
        cdef Py_ssize_t p
        cdef int status
        self.keys.begin_rows()
        for p in range(n):
            if parts[p].share:
                self.gradient.touch(
                    parts[p].rows, parts[p].order, parts[p].at, parts[p].share,
                    parts[p].left - parts[p].share, self.keys,
                )
        status = self.push.pull_keys()
        if status != RAN:
            return status
        self._lengthen(self.keys.keys.count * self.push.key_map.width)
        for p in range(n):
            if parts[p].share:
                self.loss += self.gradient.add_touched(
                    parts[p].rows, parts[p].order, parts[p].at, parts[p].share,
                    parts[p].left - parts[p].share, self.keys, self.push.at_keys, self.grad,
                )
        return RAN

    cdef void _skip(self, Py_ssize_t steps) noexcept nogil:
        """Skip steps that other ranks have completed."""
        cdef Py_ssize_t step
        self.first = min(self.step + steps, self.steps)
        for step in range(self.step, self.first):
            self.skipped += self._size(step)
        self.push.way.missed = 0

    cdef int _next(self) except -1 nogil:
        """Begin the next step."""
        self.step += 1
        self.wanted = self._size(self.step)
        return 0 if self.step < self.first else self._forget()

    cdef void _pass(self, Part* parts, Py_ssize_t n) noexcept nogil:
        """Advance the parts by their shares."""
        cdef Py_ssize_t p
        for p in range(n):
            parts[p].at += parts[p].share
            parts[p].left -= parts[p].share

    cdef int _run(self, Part* parts, Py_ssize_t n) except -1 nogil:
        cdef Py_ssize_t p, left, taken
        cdef int64_t size
        cdef int status
        cdef Py_ssize_t until = min(self.until, self.steps)
        while self.step < until:
            if self.wanted == 0 and self.step < self.first:
                self._next()
                continue
            if self.wanted == 0:
                if self.keys is None:
                    self.loss += self.gradient.finish(self.push.params, self.grad)
                if self.loss - self.loss != 0:
                    return BAD_LOSS
                size = self._size(self.step)
                self.seen += size
                self.pushes += size > 0
                self.push.activity.spend(COMPUTE, -1)
                status = self.push.push(self.grad, size, self.rates[self.step])
                if status != RAN:
                    return status
                self.push.activity.spend(PUSH, self.push.n_shards - 1)
                self.push.activity.step(size, self.seen, self.loss)
                self.push.activity.step_ends()
                self._next()
                self._skip(self.push.way.missed)
                continue
            left = 0
            for p in range(n):
                left += parts[p].left
            if left == 0:
                break
            taken = min(self.wanted, left)
            _share(parts, n, taken, left)
            if self.step < self.first:
                pass
            elif self.keys is None:
                for p in range(n):
                    if parts[p].share:
                        self.loss += self.gradient.add(
                            parts[p].rows, parts[p].order, parts[p].at, parts[p].share,
                            parts[p].left - parts[p].share, self.push.params, self.grad,
                        )
            else:
                status = self._add_by_keys(parts, n)
                if status != RAN:
                    return status
            self._pass(parts, n)
            self.wanted -= taken
        self.push.activity.flush()
        return RAN
