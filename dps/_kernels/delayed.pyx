"""Delay compensation: an estimate of a stale gradient at the current parameters.

It is the formula of DC-ASGD (Zheng et al., 2017), in which the squared gradient replaces the
diagonal of the Hessian.
"""
from cython cimport floating


cdef void compensate(
    floating* grad, const floating* now, const floating* pulled, Py_ssize_t n, double strength
) noexcept nogil:
    """grad += strength * grad * grad * (now - pulled)."""
    cdef floating factor = <floating> strength
    cdef Py_ssize_t i
    for i in range(n):
        grad[i] = grad[i] + factor * grad[i] * grad[i] * (now[i] - pulled[i])
