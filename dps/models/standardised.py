"""Other coordinates for a linear model, in which all features vary alike.

The model, its penalty and its parameters stay on the user's scale: only the steps of an
algorithm that takes them here are other ones.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Standardised"]


@dataclass(frozen=True)
class Standardised:
    r"""The point u with ``coef = u / deviation`` and ``intercept = u_0 - mean . coef``.

    These are the coefficients of the features ``(x - mean) / deviation``; no row is touched.

    Parameters
    ----------
    mean : ndarray of float64 of shape (n_features,)
        Zeros without an intercept.
    deviation : ndarray of float64 of shape (n_features,)
        Not zero.
    n_outputs : int

    Examples
    --------
    >>> coordinates = Standardised(np.array([10.0]), np.array([2.0]), 1)
    >>> coordinates.params(np.array([4.0, 1.0]), np.zeros(2))
    array([  2., -19.])
    >>> coordinates.point(np.array([2.0, -19.0]))
    array([4., 1.])
    """

    mean: Any
    deviation: Any
    n_outputs: int

    def params(self, point: Any, out: Any) -> Any:
        """Return the flat parameters at a point, written to ``out``."""
        coef, intercept = self._split(point)
        scaled = coef / self.deviation[:, None]
        out[: coef.size] = scaled.ravel()
        if intercept.size:
            out[coef.size :] = intercept - self.mean @ scaled
        return out

    def point(self, params: Any) -> Any:
        """Return the point of flat parameters."""
        coef, intercept = self._split(np.asarray(params, np.float64))
        point = np.empty(len(params))
        point[: coef.size] = (coef * self.deviation[:, None]).ravel()
        if intercept.size:
            point[coef.size :] = intercept + self.mean @ coef
        return point

    def gradient(self, gradient: Any) -> Any:
        """Return the gradient with respect to the point, from that of the parameters."""
        coef, intercept = self._split(gradient)
        result = np.array(gradient, np.float64)
        if intercept.size:
            coef = coef - self.mean[:, None] * intercept
        result[: coef.size] = (coef / self.deviation[:, None]).ravel()
        return result

    def _split(self, flat: Any) -> tuple[Any, Any]:
        at = len(self.deviation) * self.n_outputs
        return flat[:at].reshape(len(self.deviation), self.n_outputs), flat[at:]
