"""A shuffle in place, the same on every machine.

Owns how a key becomes an order: Fisher and Yates with numbers of SplitMix64 (Steele, Lea and Flood,
2014), brought into range without bias by multiplication (Lemire, 2019). NumPy's takes five times as
long, which is a good part of an epoch of a linear model.
"""
from libc.stdint cimport int64_t, uint64_t

cdef extern from *:
    """
    #include "mix.h"
    /* A number below n, all equally likely. */
    static inline uint64_t dps_below(uint64_t *state, uint64_t n) {
        unsigned __int128 product = (unsigned __int128)dps_next(state) * n;
        if ((uint64_t)product < n)
            while ((uint64_t)product < (0 - n) % n)
                product = (unsigned __int128)dps_next(state) * n;
        return (uint64_t)(product >> 64);
    }
    #define dps_fetch(p) __builtin_prefetch(p, 1, 3)
    """
    void dps_fetch(const void* p) noexcept nogil
    uint64_t dps_next(uint64_t* state) noexcept nogil
    uint64_t dps_below(uint64_t* state, uint64_t n) noexcept nogil


cdef enum:
    TOGETHER = 64   # places that are asked for before they are used: each is another cache line


def derived(uint64_t key, uint64_t first, uint64_t second):
    """A key for each pair of numbers."""
    cdef uint64_t state = key
    state = dps_next(&state) ^ first
    state = dps_next(&state) ^ second
    return dps_next(&state)


def shuffle(int64_t[::1] values, uint64_t key):
    """Put ``values`` into the order that belongs to ``key``."""
    cdef uint64_t state = key
    cdef Py_ssize_t i, j, drawn, last = values.shape[0] - 1
    cdef Py_ssize_t partner[TOGETHER]
    cdef int64_t kept
    with nogil:
        while last > 0:
            drawn = min(last, <Py_ssize_t> TOGETHER)
            for i in range(drawn):
                partner[i] = <Py_ssize_t> dps_below(&state, last - i + 1)
                dps_fetch(&values[partner[i]])
            for i in range(drawn):
                j = partner[i]
                kept = values[last - i]
                values[last - i] = values[j]
                values[j] = kept
            last -= drawn
