"""How the compiled modules were built, and the instructions that they use here."""
from dps._kernels.checks cimport DPS_DEBUG

cdef extern from "clones.h":
    const char* dps_instructions()

cdef extern from *:
    """
    #ifdef Py_LIMITED_API
    #define DPS_STABLE_ABI 1
    #else
    #define DPS_STABLE_ABI 0
    #endif
    """
    const bint DPS_STABLE_ABI

DEBUG = bool(DPS_DEBUG)  # bounds are checked
STABLE_ABI = bool(DPS_STABLE_ABI)  # for this CPython and all later versions
INSTRUCTIONS = dps_instructions().decode()
