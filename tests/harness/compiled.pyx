"""Compiled code that only tests call from Python; built beside the package."""
from cython cimport floating
from libc.stdint cimport int64_t, uint16_t, uintptr_t
from libc.string cimport memmove

import numpy as np

from dps._kernels.bfloat16 cimport add_widened, narrow, narrow_change, widen
from dps._kernels.checks cimport contiguous_rows, same_length
from dps._kernels.delayed cimport compensate
from dps._kernels.displaced cimport displaced, multiplied
from dps._kernels.keys cimport KeyList, deliver, merge, need
from dps._kernels.lazy cimport Held, LazyUpdate, apply, flush, gather
from dps.training.lbfgs.proximal cimport ProximalStep
from dps._kernels.reduce cimport copy_checked, divide_by, is_finite, sum_slots
from dps._kernels.rows cimport BlockRows, Gradient, KeyedRows
from dps._kernels.table cimport dps_home
from dps._runtime.shared.activity cimport Activity
from dps._runtime.wire.wire cimport Wire


cdef char* _address(array) except? NULL:
    return <char*> <uintptr_t> array.ctypes.data


def compensate_delay(
    floating[::1] grad, const floating[::1] now, const floating[::1] pulled, double strength
):
    """``grad += strength * grad**2 * (now - pulled)``, in place; (n,) of one dtype each."""
    if grad.shape[0]:
        compensate(&grad[0], &now[0], &pulled[0], grad.shape[0], strength)


def displacement(old, new, double rows, out):
    """``out = rows * (old - new)``, of vectors of one length and dtype."""
    displaced(
        out.dtype == "f4", _address(old), _address(new), rows, _address(out), out.shape[0]
    )


def multiple(x, double by, out):
    """``out = by * x``."""
    multiplied(out.dtype == "f4", _address(x), by, _address(out), out.shape[0])


def mean_of_slots(
    const floating[:, :] slots, const int64_t[::1] rows, Py_ssize_t start, Py_ssize_t stop,
    floating[::1] out, double total=1,
):
    """out[:stop-start] = the sum of slots[r, start:stop] in rank order, over ranks with rows.

    Divided by ``total``; zeros, without a division, if no rank has rows.
    """
    cdef Py_ssize_t stride = slots.strides[0] // <Py_ssize_t> sizeof(floating)
    contiguous_rows("slots", slots.shape[1], slots.strides[1], sizeof(floating))
    if stop > start and rows.shape[0] == 0:
        out[:stop - start] = 0
    elif stop > start:
        sum_slots(
            &slots[0, start], stride, &rows[0], rows.shape[0], &out[0], stop - start,
            <floating> total,
        )


def divide(const floating[::1] src, double by, floating[::1] out):
    """out = src / by; they may be the same."""
    if src.shape[0]:
        memmove(&out[0], &src[0], src.shape[0] * sizeof(floating))
        divide_by(&out[0], <floating> by, src.shape[0])


def copy_finite(const floating[::1] src, floating[::1] dst):
    """Copy and return whether all elements are finite."""
    return copy_checked(&dst[0], &src[0], src.shape[0]) != 0 if src.shape[0] else True


def all_finite(const floating[::1] x):
    """Return whether all elements are finite."""
    return is_finite(&x[0], x.shape[0]) != 0 if x.shape[0] else True


def narrowed(const floating[::1] x, floating[::1] error, uint16_t[::1] out):
    """out = x + error as bfloat16; `error` becomes what rounding leaves over."""
    same_length("error", error.shape[0], x.shape[0])
    if x.shape[0]:
        narrow(&out[0], &x[0], &error[0], x.shape[0])


def narrowed_change(const floating[::1] x, floating[::1] known, uint16_t[::1] out):
    """out = x - known as bfloat16; known += out."""
    same_length("known", known.shape[0], x.shape[0])
    if x.shape[0]:
        narrow_change(&out[0], &x[0], &known[0], x.shape[0])


def widened(const uint16_t[::1] x, floating[::1] out, bint added):
    """out = x, or out += x, of bfloat16."""
    same_length("out", out.shape[0], x.shape[0])
    if x.shape[0] and added:
        add_widened(&out[0], &x[0], x.shape[0])
    elif x.shape[0]:
        widen(&out[0], &x[0], x.shape[0])


def norm_of(ProximalStep step, const double[::1] point):
    """The L1 norm of a point, with the weights of the step."""
    return step.norm(&point[0]) if point.shape[0] else 0.0


def take_in(ProximalStep step):
    """Have the step take note of a pair; called after each one that is kept."""
    step.take_in()


def add_touched_batch(
    Gradient gradient, BlockRows block, order, Py_ssize_t start, Py_ssize_t stop, KeyedRows keys,
    params, out,
):
    """As `add_batch`, of the rows of the last `touch_batch`.

    `params` and `out` are of the keys, `key_width` elements each, side by side, in their order.
    """
    cdef const int64_t[::1] picks = order
    cdef const int64_t* chosen = NULL
    cdef Py_ssize_t limit = block.rows.length
    if start == stop:
        return 0.0
    if order is not None:
        chosen, limit = &picks[0], len(order)
    return gradient.add_touched(
        &block.rows, chosen, start, stop - start, limit - stop, keys, _address(params),
        _address(out),
    )


def homes(const int64_t[::1] ids, Py_ssize_t n_rows):
    """Where the search for ids begins in a table of so many rows."""
    return np.array([dps_home(ids[i], n_rows) for i in range(ids.shape[0])], np.int64)


def pushed_late(Activity activity, int shard, int64_t staleness):
    """A push to a shard was based on parameters that lacked so many updates."""
    activity.age(shard, staleness)


def send_bytes(Wire wire, const unsigned char[::1] data):
    """Send bytes over a wire."""
    cdef const void* parts[1]
    cdef Py_ssize_t sizes[1]
    parts[0], sizes[0] = &data[0], data.shape[0]
    with nogil:
        wire.send(parts, sizes, 1)


cdef Held _held(LazyUpdate update, params, state, since) except *:
    cdef Held held
    same_length("state", state.shape[0], update.lazy.spec.state_rows)
    held.size = params.shape[0]
    held.params, held.state = _address(params), _address(state)
    held.width = params.shape[0] // since.shape[0]
    held.since = <int64_t*> _address(since)
    return held


def lazy_gather(LazyUpdate update, params, state, since, keys, out, *, int64_t now):
    """``out`` = the parameters at ``keys`` (m,) int64 after update `now`; they stay."""
    cdef Held held = _held(update, params, state, since)
    gather(
        &update.lazy, update.single, &held, <const int64_t*> _address(keys), keys.shape[0], now,
        _address(out),
    )


def lazy_apply(LazyUpdate update, params, state, since, keys, grad, *, int64_t now):
    """Update `now`, with its rate, at distinct keys; True if all are finite."""
    cdef Held held = _held(update, params, state, since)
    return apply(
        &update.lazy, update.single, &held, <const int64_t*> _address(keys), keys.shape[0], now,
        _address(grad),
    ) != 0


def lazy_flush(
    LazyUpdate update, params, state, since, Py_ssize_t start, Py_ssize_t stop, *, int64_t now
):
    """Bring ``[start, stop)`` up to update `now`; True if finite."""
    cdef Held held = _held(update, params, state, since)
    return flush(&update.lazy, update.single, &held, start, stop, now) != 0


def deliver_keys(
    const int64_t[::1] keys, const floating[::1] values, Py_ssize_t width, int64_t[::1] slot_keys,
    floating[::1] slot, int64_t[::1] counts, Py_ssize_t each=1,
):
    """Fill a slot, slice by slice of `width` keys; True if all values are finite."""
    if keys.shape[0] == 0:
        counts[:] = 0
        return True
    return deliver(
        &keys[0], keys.shape[0], &values[0], width, counts.shape[0], &slot_keys[0], &slot[0],
        &counts[0], each, 0,
    )


def merge_keys(
    const int64_t[:, ::1] keys, const floating[:, ::1] slots, const int64_t[:, ::1] counts,
    const int64_t[::1] rows, Py_ssize_t rank, KeyList merged, floating[::1] sums, double total,
    Py_ssize_t each=1,
):
    """The mean over all ranks' slots in the slice of one; its number of keys."""
    cdef Py_ssize_t n_ranks = rows.shape[0]
    merged.begin()
    if sums.shape[0] == 0:  # the slice is empty
        return 0
    need(&merged.keys, n_ranks * keys.shape[1])
    return merge(
        &keys[0, 0], keys.shape[1], &slots[0, 0], slots.shape[1], &counts[0, 0], &rows[0],
        n_ranks, n_ranks, rank, &merged.keys, &sums[0], <floating> total, each,
    )
