# Prefetch a line to the second-level cache.
cdef extern from *:
    """
    #define dps_prefetch(p) __builtin_prefetch(p, 0, 2)
    """
    void dps_prefetch(const void* p) noexcept nogil
