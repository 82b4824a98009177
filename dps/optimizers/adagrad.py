"""Adagrad. It must not know where the vectors live."""

from dataclasses import dataclass
from typing import Any, ClassVar

from dps._kernels.optimizers import UpdateKernel
from dps._parameters import check_real
from dps.optimizers.base import Optimizer
from dps.optimizers.schedules import Constant, Schedule

__all__ = ["Adagrad"]


@dataclass(frozen=True)
class Adagrad(Optimizer):
    r"""Adagrad (Duchi, Hazan and Singer, 2011), in TensorFlow's form.

    .. math:: G \leftarrow G + g^2, \qquad p \leftarrow p - \eta\, g / \sqrt{G}

    The accumulator starts above zero and there is no epsilon, as in ``tf.raw_ops.ApplyAdagrad``;
    PyTorch starts at zero and adds an epsilon. The proximal step of the penalty has the
    coordinate's own step size :math:`\eta / \sqrt{G}`.

    Parameters
    ----------
    initial_accumulator : float, default=0.1
        :math:`G` before the first update; positive.

    Examples
    --------
    >>> import numpy as np
    >>> params, state = np.zeros(1), np.full((1, 1), 3.0)
    >>> Adagrad().update(params, np.ones(1), state, step=1, lr=1.0, l1=0.0, l2=0.0)
    True
    >>> params
    array([-0.5])
    """

    state_rows: ClassVar[int] = 1
    initial_accumulator: float = 0.1

    def __post_init__(self) -> None:
        check_real(self, "initial_accumulator", 0.0, float("inf"), closed="neither")

    @property
    def default_schedule(self) -> Schedule:
        """``Constant(0.5)``."""
        return Constant(0.5)

    def initialize(self, state: Any) -> None:
        """Fill the accumulator, see `Optimizer.initialize`."""
        state[...] = self.initial_accumulator

    @property
    def kernel(self) -> UpdateKernel:  # type: ignore[override]
        """The kernel ``adagrad``."""
        return UpdateKernel("adagrad")
