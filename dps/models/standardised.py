"""Other coordinates for a linear model, in which its objective curves alike in all directions.

The model, its penalty and its parameters stay on the user's scale: only the steps of an
algorithm that takes them here are other ones.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Standardised"]


@dataclass(frozen=True)
class Standardised:
    r"""The point u with ``coef = u / scale`` and ``intercept = u_0 / scale_0 - mean . coef``.

    These are the coefficients of the features ``(x - mean) / scale``; no row is touched.

    Parameters
    ----------
    mean : ndarray of float64 of shape (n_features,)
        Zeros without an intercept.
    scale : ndarray of float64 of shape (n_features,)
        Not zero.
    scale_0 : float
        Not zero.
    n_outputs : int

    Examples
    --------
    >>> coordinates = Standardised(np.array([10.0]), np.array([2.0]), 1.0, 1)
    >>> coordinates.params(np.array([4.0, 1.0]), np.zeros(2))
    array([  2., -19.])
    >>> coordinates.point(np.array([2.0, -19.0]))
    array([4., 1.])
    """

    mean: Any
    scale: Any
    scale_0: float
    n_outputs: int

    def params(self, point: Any, out: Any) -> Any:
        """Return the flat parameters at a point, written to ``out``."""
        coef, intercept = self._split(point)
        scaled = coef / self.scale[:, None]
        out[: coef.size] = scaled.ravel()
        if intercept.size:
            out[coef.size :] = intercept / self.scale_0 - self.mean @ scaled
        return out

    def point(self, params: Any) -> Any:
        """Return the point of flat parameters."""
        coef, intercept = self._split(np.asarray(params, np.float64))
        point = np.empty(len(params))
        point[: coef.size] = (coef * self.scale[:, None]).ravel()
        if intercept.size:
            point[coef.size :] = (intercept + self.mean @ coef) * self.scale_0
        return point

    def gradient(self, gradient: Any) -> Any:
        """Return the gradient with respect to the point, from that of the parameters."""
        coef, intercept = self._split(gradient)
        result = np.empty(len(gradient))
        if intercept.size:
            coef = coef - self.mean[:, None] * intercept
            result[coef.size :] = intercept / self.scale_0
        result[: coef.size] = (coef / self.scale[:, None]).ravel()
        return result

    def _split(self, flat: Any) -> tuple[Any, Any]:
        at = len(self.scale) * self.n_outputs
        return flat[:at].reshape(len(self.scale), self.n_outputs), flat[at:]
