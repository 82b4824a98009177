"""The interface of an optimizer: a configuration, and element-wise updates.

Parameters, gradients and state are flat vectors of the caller. A slice of a vector is updated like
the whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from dps._kernels.optimizers import UpdateKernel
from dps._native import written_in_python
from dps._parameters import Configuration, check_real
from dps.optimizers.schedules import Schedule


@dataclass(frozen=True)
class Optimizer(Configuration, ABC):
    """Turns the mean gradient of a batch into new parameters.

    Parameters
    ----------
    learning_rate : float, Schedule, name of a schedule or "auto", default="auto"
        For estimators and parameter servers whose own `learning_rate` is not given. "auto" depends
        on where it is used. Other parameters are given by name.

    Attributes
    ----------
    state_rows : int
        Number of vectors of the parameters' length that it keeps between updates.
    kernel : UpdateKernel or None
        The kernel of `update` and of native loops.
    always_lazy : bool
        True if sparse updates are another algorithm than dense ones, not a faster way to the same
        result, so that sparse rows always use them.
    reports_a_mean : bool
        True if `result` is another vector than the parameters.

    Examples
    --------
    >>> from dps.optimizers import Adam
    >>> Adam(beta1=0.8).get_params()
    {'learning_rate': 'auto', 'beta1': 0.8, 'beta2': 0.999, 'epsilon': 1e-08, 'lazy': False}
    """

    learning_rate: float | Schedule | str = "auto"

    state_rows: ClassVar[int] = 0
    kernel: ClassVar[UpdateKernel | None] = None
    always_lazy: ClassVar[bool] = False
    reports_a_mean: ClassVar[bool] = False
    _in_python: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.learning_rate, Schedule | str):
            check_real(self, "learning_rate", 0.0, float("inf"), closed="neither")

    @property
    @abstractmethod
    def default_schedule(self) -> Schedule:
        """The learning rate for ``learning_rate="auto"``."""

    def initialize(self, state: Any) -> None:
        """Fill the state of the first update, in place.

        Parameters
        ----------
        state : ndarray of shape (state_rows, n)
        """
        state[...] = 0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._in_python = written_in_python(cls, "update", "kernel")

    @property
    def native(self) -> UpdateKernel | None:
        """The kernel, unless a subclass has written `update` in Python."""
        return None if self._in_python else self.kernel

    @property
    def _undecayed(self) -> Optimizer:
        """Return the optimizer without weight decay, for tensors without a penalty."""
        return self

    def update(
        self, params: Any, grad: Any, state: Any, *, step: int, lr: float, l1: float, l2: float
    ) -> bool:
        """Apply one update and the proximal step of the penalty, in place.

        An optimizer either has a kernel or writes this method.

        Parameters
        ----------
        params : ndarray of shape (n,), float32 or float64
        grad : ndarray of shape (n,)
            The mean gradient, without the penalty's.
        state : ndarray of shape (state_rows, n)
        step : int
            Which update this is; the first is 1.
        lr : float
            The learning rate.
        l1, l2 : float
            The penalty is ``l1 * |p| + l2 * p**2 / 2``.

        Returns
        -------
        bool
            Whether all updated parameters are finite.
        """
        kernel = self.kernel
        if kernel is None:
            raise NotImplementedError(f"{type(self).__name__} has neither update nor a kernel")
        return kernel.update(params, grad, state, step=step, lr=lr, l1=l1, l2=l2)

    def result(self, params: Any, state: Any) -> Any:
        """Return the parameters to report.

        Parameters
        ----------
        params : ndarray of shape (n,)
        state : ndarray of shape (state_rows, n)

        Returns
        -------
        ndarray of shape (n,)
        """
        return params
