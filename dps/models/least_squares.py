"""The optimum of least squares, from mean products of the columns of X and y."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dps._cores import one_thread_each
from dps._warned import warned

#: A Cholesky factor with a smaller ratio of its least pivot to its diagonal has few correct digits.
#: Eigenvalues replace it, and those below the second share of the largest are rounding errors.
_NEARLY_SINGULAR, _ROUNDING = 1e-9, 1e-14
#: Coordinate descent ends at this duality gap, as a share of the objective at zero; or after a
#: number of passes over the coefficients, which is bounded so that they take about a second.
_GAP, _MOST_PASSES, _SECOND = 1e-10, 1_000_000, 1 << 30


@dataclass(frozen=True)
class LeastSquares:
    """The objective ``mean((y - X @ coef)**2) / 2 + l1 * |coef|_1 + l2 / 2 * |coef|_2^2``.

    products: (p, p) array, mean products of the columns of X.
    cross: (p, q) array, mean products with the columns of y.
    square: (q,) array, mean squares of the columns of y.

    Examples
    --------
    >>> given = LeastSquares(np.array([[4.0]]), np.array([[2.0]]), np.array([3.0]))
    >>> coef = given.solve(l1=0.0, l2=1.0)
    >>> coef, given.loss(coef)
    (array([[0.4]]), 1.02)
    >>> given.solve(l1=1.0, l2=1.0)
    array([[0.2]])
    """

    products: NDArray[np.float64]
    cross: NDArray[np.float64]
    square: NDArray[np.float64]

    def solve(self, l1: float, l2: float) -> NDArray[np.float64] | None:
        """Return the coefficients, (p, q); None if coordinate descent does not converge."""
        with one_thread_each():
            return self._by_descent(l1, l2) if l1 else self._by_factors(l2)

    def loss(self, coef: NDArray[np.float64]) -> float:
        """Return half the mean squared error, summed over outputs."""
        explained = np.einsum("ij,ij->j", coef, 2 * self.cross - self.products @ coef)
        return float(np.maximum(self.square - explained, 0.0).sum()) / 2

    def _by_factors(self, l2: float) -> NDArray[np.float64]:
        curvature = self.products.copy()
        curvature.flat[:: len(curvature) + 1] += l2
        diagonal = np.diagonal(curvature)
        scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))[:, None]
        curvature /= scale * scale.T
        factor, failed = scipy.linalg.lapack.dpotrf(curvature, lower=True)
        if not failed and np.square(np.diagonal(factor)).min() > _NEARLY_SINGULAR:
            found, _ = scipy.linalg.lapack.dpotrs(factor, self.cross / scale, lower=True)
        else:
            values, vectors = _eigen(curvature)
            found = vectors @ (vectors.T @ (self.cross / scale) / values[:, None])
        return np.asarray(found / scale)

    def _by_descent(self, l1: float, l2: float) -> NDArray[np.float64] | None:
        """Run scikit-learn's coordinate descent on a square matrix with these products."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import enet_path

        values, vectors = _eigen(self.products)
        rows = np.sqrt(len(values)) * np.sqrt(values)[:, None] * vectors.T
        targets = np.sqrt(len(values)) * (vectors.T @ self.cross) / np.sqrt(values)[:, None]
        coef, most = np.empty_like(self.cross), min(_MOST_PASSES, _SECOND // len(self.cross) ** 2)
        # The duality gap shows convergence, whatever warning filters say.
        with warned(), suppress(ConvergenceWarning):
            for output, column in enumerate(targets.T):
                _, path, gaps = enet_path(
                    rows, column, l1_ratio=l1 / (l1 + l2), alphas=[l1 + l2],
                    precompute=False, tol=_GAP, max_iter=most,
                )  # fmt: skip
                if gaps[0] > 1.01 * _GAP * (column @ column) / len(rows):
                    return None
                coef[:, output] = path[:, 0]
            return coef
        return None


def _eigen(products: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the eigenvalues above rounding errors, at least one, and their vectors."""
    values, vectors = scipy.linalg.eigh(products)
    kept = values > max(_ROUNDING * values[-1], np.finfo(float).tiny)
    kept[-1] = True
    return np.maximum(values[kept], np.finfo(float).tiny), vectors[:, kept]
