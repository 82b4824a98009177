# Have a line on its way from memory to the second cache.
cdef extern from *:
    """
    #define dps_prefetch(p) __builtin_prefetch(p, 0, 2)
    """
    void dps_prefetch(const void* p) noexcept nogil
