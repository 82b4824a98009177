"""Names, shapes and penalties of tensors in a flat vector of parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from math import inf, prod
from typing import Any

from dps._checks import count
from dps._kernels.optimizers import KINDS_OF_RUNS


@dataclass(frozen=True)
class Tensor:
    """One named array of a model.

    Parameters
    ----------
    name : str
    shape : tuple of int
    penalised : bool
        If True, L1 and L2 penalties apply.
    trained : bool, default=True
        If True, the optimizer updates it. A tensor that is not trained, such as a running mean,
        changes by its gradient: a model adds ``rows * (value - new value)`` to it, and the mean
        over the rows of all replicas is applied.

    Examples
    --------
    >>> Tensor("coef", (3, 2), penalised=True).size
    6
    """

    name: str
    shape: tuple[int, ...]
    penalised: bool
    trained: bool = True

    def __post_init__(self) -> None:
        if self.penalised and not self.trained:
            raise ValueError(f"the tensor {self.name!r} is not trained, and so cannot be penalised")

    @property
    def kind(self) -> int:
        """How updates treat the tensor, one of `KINDS_OF_RUNS`."""
        kind = "penalised" if self.penalised else "free" if self.trained else "untrained"
        return KINDS_OF_RUNS[kind]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class TableSpec:
    """The initial rows of a layout's first tensor, made when an id is first touched.

    Parameters
    ----------
    rows : int
        Room for rows; more than are needed, because they are a hash table.
    width : int
        Elements of a row.
    zeros : int, default=0
        Elements of a new row that are zero; those behind them are drawn evenly, up to `scale`.
    scale : float, default=0
    min_count : int, default=1
        Steps of an epoch in which an id has to be touched before it has a row.
    expire : int, default=0
        Epochs without a touch after which a row is given up; 0: never.
    normal : bool, default=False
        True draws new rows from a normal distribution of that scale instead.
    """

    rows: int
    width: int
    zeros: int = 0
    scale: float = 0.0
    min_count: int = 1
    expire: int = 0
    normal: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("rows", 1), ("width", 1), ("zeros", 0), ("min_count", 1), ("expire", 0)
        ):  # fmt: skip
            count(getattr(self, name), name, least)
        if not 0 <= self.scale < inf:
            raise ValueError(f"scale is {self.scale!r}, and must not be below 0")


@dataclass(frozen=True)
class Layout:
    """Tensors in C order, one after the other in a flat vector.

    Parameters
    ----------
    tensors : tuple of Tensor
    table : TableSpec, optional
        Description of the first tensor, if its rows are made when they are touched.

    Examples
    --------
    >>> import numpy as np
    >>> layout = Layout((Tensor("coef", (2, 1), True), Tensor("intercept", (1,), False)))
    >>> layout.views(np.arange(3.0))
    {'coef': array([[0.], [1.]]), 'intercept': array([2.])}
    >>> layout.segments(1, 3)
    [(1, 2, 1), (2, 3, 0)]
    """

    tensors: tuple[Tensor, ...]
    table: TableSpec | None = None

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) < len(names):
            raise ValueError(f"The tensors of a Layout must have different names. Got {names}.")

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Start of each tensor in the flat vector."""
        starts, start = {}, 0
        for tensor in self.tensors:
            starts[tensor.name] = start
            start += tensor.size
        return starts

    @cached_property
    def size(self) -> int:
        """The length of the flat vector."""
        return sum(tensor.size for tensor in self.tensors)

    def with_rows(self, rows: int) -> Layout:
        """Return the layout with another number of table rows; without a table, itself."""
        if self.table is None:
            return self
        first = replace(self.tensors[0], shape=(rows, self.table.width))
        return Layout((first, *self.tensors[1:]))

    @cached_property
    def digest(self) -> str:
        """A hash of the tensors, the same in all processes."""
        text = repr([(t.name, tuple(map(int, t.shape)), t.kind) for t in self.tensors])
        return sha256(text.encode()).hexdigest()

    def views(self, flat: Any) -> dict[str, Any]:
        """Return the tensors in a flat vector as views.

        Parameters
        ----------
        flat : ndarray of shape (size,)
            C-contiguous.

        Returns
        -------
        dict of str to ndarray

        Raises
        ------
        ValueError
            If the vector has another shape or is not contiguous.
        """
        if flat.shape != (self.size,) or not flat.flags.c_contiguous:
            raise ValueError(
                f"flat must be a contiguous vector of length {self.size}, got shape {flat.shape} "
                f"with strides {flat.strides}"
            )
        return {
            tensor.name: flat[start : start + tensor.size].reshape(tensor.shape)
            for tensor, start in zip(self.tensors, self.offsets.values(), strict=True)
        }

    def segments(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return maximal runs of one kind that cover [start, stop).

        Parameters
        ----------
        start, stop : int
            A range of the flat vector.

        Returns
        -------
        list of (int, int, int)
            Start, stop and the kind of the tensors, see `Tensor.kind`, in order.

        Raises
        ------
        ValueError
            If the range is not inside the vector.
        """
        if not 0 <= start <= stop <= self.size:
            raise ValueError(f"[{start}, {stop}) is not inside a layout of size {self.size}")
        runs: list[tuple[int, int, int]] = []
        for tensor, offset in zip(self.tensors, self.offsets.values(), strict=True):
            low, high = max(start, offset), min(stop, offset + tensor.size)
            if low >= high:
                continue
            if runs and runs[-1][2] == tensor.kind:
                low = runs.pop()[0]
            runs.append((low, high, tensor.kind))
        return runs
