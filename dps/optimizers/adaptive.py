"""Optimizers with a step size for each coordinate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dps._kernels.optimizers import UpdateKernel
from dps._parameters import check_real
from dps.optimizers.base import Optimizer
from dps.optimizers.schedules import Constant, InvScaling, Schedule

#: The default weight decay of AdamW, as in PyTorch.
_DECAY = 0.01


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    r"""Adagrad (Duchi, Hazan and Singer, 2011), in TensorFlow's form.

    .. math:: G \leftarrow G + g^2, \qquad p \leftarrow p - \eta\, g / \sqrt{G}

    The accumulator starts above zero and there is no epsilon, as in ``tf.raw_ops.ApplyAdagrad``;
    PyTorch starts at zero and adds an epsilon. The proximal step of the penalty has the
    coordinate's own step size :math:`\eta / \sqrt{G}`.

    Parameters
    ----------
    learning_rate : float, Schedule, name of a schedule or "auto", default="auto"
        See `Optimizer`.
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
        super().__post_init__()
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


@dataclass(frozen=True, kw_only=True)
class ScaledAdagrad(Adagrad):
    r"""Adagrad whose steps are in units of their coordinates.

    .. math:: G \leftarrow G + g^2, \qquad p \leftarrow p - \eta\, u\, g / \sqrt{G}

    A linear model's coordinate has the unit :math:`u = 1 / s`, where its feature varies by
    :math:`s`: it then makes the same steps, in the raw output, whatever units its features have.
    That is the normalised adaptive gradient of "Normalized Online Learning" (Ross, Mineiro and
    Langford, 2013), but for its scales, which are found while training. The proximal step of the
    penalty has the coordinate's own step size :math:`\eta\, u / \sqrt{G}`.

    Parameters
    ----------
    learning_rate : float, Schedule, name of a schedule or "auto", default="auto"
        See `Optimizer`.
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
        # Never zero: its root would divide the gradient of a feature that a batch lacks.
        least = np.finfo(state.dtype).tiny
        state[0] = np.maximum(self.initial_accumulator / units**2, least)
        state[1] = units

    @property
    def kernel(self) -> UpdateKernel:  # type: ignore[override]
        """The kernel ``scaled_adagrad``."""
        return UpdateKernel("scaled_adagrad")


@dataclass(frozen=True, kw_only=True)
class _Moments(Optimizer):
    """The common part of Adam and AdamW."""

    state_rows: ClassVar[int] = 2
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_real(self, "beta1", 0.0, 1.0, closed="left")
        check_real(self, "beta2", 0.0, 1.0, closed="left")
        check_real(self, "epsilon", 0.0, float("inf"))

    @property
    def default_schedule(self) -> Schedule:
        """``InvScaling(0.02)``."""
        return InvScaling(0.02)


@dataclass(frozen=True, kw_only=True)
class Adam(_Moments):
    r"""Adam, Algorithm 1 of Kingma and Ba (2015), as in PyTorch.

    .. math::

        m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad
        v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \quad
        p \leftarrow p - \eta\, \hat m / (\sqrt{\hat v} + \epsilon)

    with :math:`\hat m = m / (1 - \beta_1^t)` and :math:`\hat v = v / (1 - \beta_2^t)`. TensorFlow
    adds its epsilon before the bias correction. The proximal step of the penalty has the
    coordinate's own step size :math:`\eta / (\sqrt{\hat v} + \epsilon)`. So that it is no longer
    than a step where there is no gradient, an L2 penalty's gradient counts in :math:`v`.

    Parameters
    ----------
    learning_rate : float, Schedule, name of a schedule or "auto", default="auto"
        See `Optimizer`.
    beta1, beta2 : float, default=0.9, 0.999
        Decay of the two moments, in [0, 1).
    epsilon : float, default=1e-8
        Not negative.
    lazy : bool, default=False
        On sparse rows, update only what a batch touches, as ``torch.optim.SparseAdam`` and
        TensorFlow's ``LazyAdam``: moments of other coordinates neither decay nor move them. That
        is another algorithm, at the cost of the stored values instead of the whole vector.
        Proximal steps that a coordinate has missed are made up for when it is touched next, with
        the step size it has then. On dense rows every coordinate is touched. With ``average``, or
        a loss, model or mode written in Python, it is an error on sparse rows.

    Examples
    --------
    The first step has the length of the learning rate, whatever the gradient:

    >>> import numpy as np
    >>> params, state = np.zeros(2), np.zeros((2, 2))
    >>> grad = np.array([1.0, -100.0])
    >>> Adam().update(params, grad, state, step=1, lr=0.5, l1=0.0, l2=0.0)
    True
    >>> params.round(6)
    array([-0.5,  0.5])
    """

    lazy: bool = False

    @property
    def always_lazy(self) -> bool:  # type: ignore[override]
        """``lazy``."""
        return self.lazy

    @property
    def kernel(self) -> UpdateKernel:  # type: ignore[override]
        """The kernel ``adam``."""
        return UpdateKernel(
            "adam", beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, lazy=self.lazy
        )


@dataclass(frozen=True, kw_only=True)
class AdamW(_Moments):
    r"""Adam with weight decay that does not depend on the gradient (Loshchilov and Hutter, 2019).

    After the step of :class:`Adam`, :math:`p \leftarrow p / (1 + \eta \lambda)`, where
    :math:`\lambda` is `weight_decay`: the implicit form of "Understanding AdamW through Proximal
    Methods" (Zhuang et al., 2022). Estimators decay the tensors that have a penalty, and no
    intercepts.

    Parameters
    ----------
    learning_rate : float, Schedule, name of a schedule or "auto", default="auto"
        See `Optimizer`.
    beta1, beta2 : float, default=0.9, 0.999
        Decay of the two moments, in [0, 1).
    epsilon : float, default=1e-8
        Not negative.
    weight_decay : float or "auto", default="auto"
        "auto" is 0.01, as in PyTorch, but in networks and factorization machines, which choose it.

    Examples
    --------
    A coordinate without a gradient decays all the same:

    >>> import numpy as np
    >>> params, state, optimizer = np.ones(1), np.zeros((2, 1)), AdamW(weight_decay=2.0)
    >>> optimizer.update(params, np.zeros(1), state, step=1, lr=0.5, l1=0.0, l2=0.0)
    True
    >>> params
    array([0.5])
    """

    weight_decay: float | str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay != "auto":
            check_real(self, "weight_decay", 0.0, float("inf"), closed="left")

    @property
    def _undecayed(self) -> AdamW:
        return replace(self, weight_decay=0.0)

    @property
    def kernel(self) -> UpdateKernel:  # type: ignore[override]
        """The kernel ``adam`` with decay."""
        decay = _DECAY if self.weight_decay == "auto" else float(self.weight_decay)
        return UpdateKernel(
            "adam", beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, decay=decay
        )
