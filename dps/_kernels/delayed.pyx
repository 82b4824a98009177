"""Delay compensation: what a gradient would about be where the parameters are now.

Owns one formula, that of DC-ASGD (Zheng et al. 2017): the gradient's square stands for the diagonal
of the Hessian. It must not know who pulled what, or when.
"""
from cython cimport floating

from dps._kernels.checks cimport same_length


cdef void compensate(
    floating* grad, const floating* now, const floating* pulled, Py_ssize_t n, double strength
) noexcept nogil:
    """grad += strength * grad * grad * (now - pulled)."""
    cdef floating factor = <floating> strength
    cdef Py_ssize_t i
    for i in range(n):
        grad[i] = grad[i] + factor * grad[i] * grad[i] * (now[i] - pulled[i])


def compensate_delay(
    floating[::1] grad, const floating[::1] now, const floating[::1] pulled, double strength
):
    """``grad += strength * grad**2 * (now - pulled)``, in place; (n,) of one dtype each."""
    same_length("now", now.shape[0], grad.shape[0])
    same_length("pulled", pulled.shape[0], grad.shape[0])
    if grad.shape[0]:
        with nogil:
            compensate(&grad[0], &now[0], &pulled[0], grad.shape[0], strength)
