"""Learning rates as functions of the completed epochs, whatever the batch size and mode."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import cos, floor, pi

from dps._parameters import Configuration, check_real

_INFINITY = float("inf")


@dataclass(frozen=True)
class Schedule(Configuration, ABC):
    """A learning rate as a function of the completed epochs.

    Parameters
    ----------
    rate : float
        The learning rate at the start; positive.

    Examples
    --------
    >>> InvScaling(0.1)(3.0)
    0.05
    """

    rate: float

    def __post_init__(self) -> None:
        check_real(self, "rate", 0.0, _INFINITY, closed="neither")

    @abstractmethod
    def __call__(self, t: float) -> float:
        """Return the learning rate after ``t`` epochs (rows seen divided by rows)."""


@dataclass(frozen=True)
class Constant(Schedule):
    """A constant rate.

    Parameters
    ----------
    rate : float

    Examples
    --------
    >>> Constant(0.1)(10.0)
    0.1
    """

    def __call__(self, t: float) -> float:
        """Return ``rate``."""
        return self.rate


@dataclass(frozen=True)
class InvScaling(Schedule):
    """``rate / (1 + t) ** power``, scikit-learn's "invscaling" by epochs.

    Parameters
    ----------
    rate : float
    power : float, default=0.5

    Examples
    --------
    >>> InvScaling(1.0, power=1.0)(1.0)
    0.5
    """

    power: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_real(self, "power", 0.0, _INFINITY)

    def __call__(self, t: float) -> float:
        """Return the rate after ``t`` epochs."""
        return float(self.rate / (1.0 + t) ** self.power)


@dataclass(frozen=True)
class Step(Schedule):
    """``rate * factor ** floor(t / every)``.

    Parameters
    ----------
    rate : float
    factor : float, default=0.1
    every : float, default=10.0
        Epochs between two steps.

    Examples
    --------
    >>> Step(1.0, factor=0.5, every=2.0)(4.5)
    0.25
    """

    factor: float = 0.1
    every: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_real(self, "factor", 0.0, 1.0, closed="right")
        check_real(self, "every", 0.0, _INFINITY, closed="neither")

    def __call__(self, t: float) -> float:
        """Return the rate after ``t`` epochs."""
        return float(self.rate * self.factor ** floor(t / self.every))


@dataclass(frozen=True)
class Cosine(Schedule):
    r"""Half a cosine from ``rate`` to ``final`` (Loshchilov and Hutter, 2017), then ``final``.

    .. math:: \min(t / w, 1) (r_1 + (r_0 - r_1) (1 + \cos(\pi \min(t / T, 1))) / 2)

    Parameters
    ----------
    rate : float
        :math:`r_0`.
    epochs : float
        :math:`T`.
    final : float, default=0.0
        :math:`r_1`.
    warmup : float, default=0.0
        :math:`w`: epochs in which the rate grows to what it would be.

    Examples
    --------
    >>> Cosine(1.0, epochs=10.0, final=0.5)(5.0)
    0.75
    """

    epochs: float
    final: float = 0.0
    warmup: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_real(self, "epochs", 0.0, _INFINITY, closed="neither")
        check_real(self, "final", 0.0, _INFINITY)
        check_real(self, "warmup", 0.0, _INFINITY)

    def __call__(self, t: float) -> float:
        """Return the rate after ``t`` epochs."""
        done = min(t / self.epochs, 1.0)
        grown = min(t / self.warmup, 1.0) if self.warmup else 1.0
        return grown * (self.final + (self.rate - self.final) * (1.0 + cos(pi * done)) / 2.0)


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "invscaling": InvScaling,
    "step": Step,
    "cosine": Cosine,
}
