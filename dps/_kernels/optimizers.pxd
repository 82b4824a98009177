from cython cimport floating
from libc.stdint cimport int64_t

cdef extern from "update_spec.h":
    enum:
        SGD "DPS_SGD"
        MOMENTUM "DPS_MOMENTUM"
        ADAGRAD "DPS_ADAGRAD"
        SCALED_ADAGRAD "DPS_SCALED_ADAGRAD"
        ADAM "DPS_ADAM"

    ctypedef struct UpdateSpec "dps_update_spec":
        int kind
        bint nesterov
        double momentum
        double beta1
        double beta2
        double epsilon
        double decay
        int state_rows
        int64_t averaged_from
        int64_t horizon


cdef enum:
    # Kinds of coordinates for an update:
    FREE            # trained, without a penalty
    PENALISED       # trained
    UNTRAINED  # changed by their gradient directly


cdef class UpdateKernel:
    cdef UpdateSpec spec
    cdef readonly str name
    cdef readonly bint lazy  # whether coordinates without a gradient may be updated later


cdef bint update(
    const UpdateSpec* spec, floating* p, const floating* g, floating* state, Py_ssize_t stride,
    Py_ssize_t n, int64_t step, double lr, double l1, double l2,
) noexcept nogil
cdef bint change(floating* p, const floating* g, Py_ssize_t n) noexcept nogil
