"""Delay compensation: what a gradient would about be where the parameters are now.

Owns one formula, that of DC-ASGD (Zheng et al. 2017): the gradient's square stands for the diagonal
of the Hessian.
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
