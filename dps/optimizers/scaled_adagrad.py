"""Adagrad with a unit for each coordinate. It must not know where the vectors live."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps._kernels.optimizers import UpdateKernel
from dps._parameters import check_real
from dps.optimizers.base import Optimizer
from dps.optimizers.schedules import Constant, Schedule

__all__ = ["ScaledAdagrad"]


@dataclass(frozen=True)
class ScaledAdagrad(Optimizer):
    r"""Adagrad whose steps are in units of their coordinates.

    .. math:: G \leftarrow G + g^2, \qquad p \leftarrow p - \eta\, u\, g / \sqrt{G}

    A linear model's coordinate has the unit :math:`u = 1 / s`, where its feature varies by
    :math:`s`: it then makes the same steps, in the raw output, whatever units its features have.
    That is the normalised adaptive gradient of "Normalized Online Learning" (Ross, Mineiro and
    Langford, 2013), but for its scales, which are found while training. The proximal step of the
    penalty has the coordinate's own step size :math:`\eta\, u / \sqrt{G}`.

    Parameters
    ----------
    initial_accumulator : float, default=1e-6
        :math:`G u^2` before the first update; positive.

    Examples
    --------
    The same steps in units that are ten times as large:

    >>> import numpy as np
    >>> optimizer, state = ScaledAdagrad(initial_accumulator=3.0), np.zeros((2, 2))
    >>> optimizer.initialize(state)
    >>> optimizer.set_units(state, np.array([1.0, 0.1]))
    >>> params = np.zeros(2)
    >>> grad = np.array([1.0, 10.0])
    >>> optimizer.update(params, grad, state, step=1, lr=1.0, l1=0.0, l2=0.0)
    True
    >>> params * [1.0, 10.0]
    array([-0.5, -0.5])
    """

    state_rows: ClassVar[int] = 2
    initial_accumulator: float = 1e-6

    def __post_init__(self) -> None:
        check_real(self, "initial_accumulator", 0.0, float("inf"), closed="neither")

    @property
    def default_schedule(self) -> Schedule:
        """``Constant(0.1)``."""
        return Constant(0.1)

    def initialize(self, state: Any) -> None:
        """Fill accumulator and units, which are one, see `Optimizer.initialize`."""
        state[0] = self.initial_accumulator
        state[1] = 1

    def set_units(self, state: Any, units: Any) -> None:
        """Give coordinates their units, before the first update.

        Parameters
        ----------
        state : ndarray of shape (2, n)
        units : ndarray of shape (n,)
            Positive.
        """
        # Nowhere zero, whose root would divide the gradient of a feature that a batch lacks.
        least = np.finfo(state.dtype).tiny
        state[0] = np.maximum(self.initial_accumulator / units**2, least)
        state[1] = units

    @property
    def kernel(self) -> UpdateKernel:  # type: ignore[override]
        """The kernel ``scaled_adagrad``."""
        return UpdateKernel("scaled_adagrad")
