"""The common part of models whose gradient is a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from dps._checks import count, floats
from dps._kernels.rows import Gradient
from dps.losses import Loss
from dps.models.base import CSRRows, Rows
from dps.models.layout import Layout

Kernel = TypeVar("Kernel", bound=Gradient)


class NativeModel(ABC, Generic[Kernel]):
    """A model with a kernel.

    The kernel has scratch memory, and is neither pickled nor shared: each replica has its own
    instance, used by one thread at a time.
    """

    draws: ClassVar[bool] = False  # the kernel draws dropped units

    hidden: tuple[int, ...]
    dropout: float
    dtype: Any
    output_shift: Any
    output_scale: Any
    layout: Layout
    loss: Loss
    n_outputs: int
    _kernel: Kernel | None = None

    def _set_outputs(
        self, hidden: tuple[int, ...], n_outputs: int, dropout: float, dtype: Any, shift: Any,
        scale: Any,
    ) -> None:  # fmt: skip
        """Set the common attributes of models with layers.

        Raises ValueError: an argument is invalid.
        """
        for units in hidden:
            count(units, "hidden", 1)
        count(n_outputs, "n_outputs", 1)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout!r}, and must be in [0, 1)")
        self.hidden, self.n_outputs, self.dropout = hidden, n_outputs, dropout
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype is {dtype}, and must be float32 or float64")
        shift = np.zeros(n_outputs) if shift is None else np.asarray(shift, np.float64)
        scale = np.ones(n_outputs) if scale is None else np.asarray(scale, np.float64)
        self.output_shift = floats(shift, "output_shift", n_outputs)
        self.output_scale = floats(scale, "output_scale", n_outputs)

    @abstractmethod
    def _make_kernel(self) -> Kernel:
        """Return the gradient for native loops, which also has `raw_batch`."""

    @property
    def kernel(self) -> Kernel:
        """The gradient for native loops."""
        if self._kernel is None:
            self._kernel = self._make_kernel()
        return self._kernel

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kernel": None}

    def loss_gradient(
        self,
        params: Any,
        X: Rows,
        y: Any,
        weight: Any,
        out: Any,
        rng: Any = None,
    ) -> float:
        """Add the gradient to ``out`` and return the sum of losses, see `Model.loss_gradient`."""
        key = 0 if rng is None else int(rng.integers(2**63))
        block = X.block(y, weight)
        return self.kernel.add_batch(block, X.order, 0, len(X), params, out, key)

    def evaluate(self, params: Any, X: Rows, y: Any, weight: Any) -> float:
        """Return the sum of losses without dropout, see `Model.loss_gradient`."""
        raw = self.raw(params, X)
        return self.loss.evaluate(y, raw, weight, np.empty_like(raw))

    def raw(self, params: Any, X: Rows) -> Any:
        """Return the raw outputs in a new array, see `Model.raw`."""
        out = np.empty((len(X), self.n_outputs), self.dtype)
        rows = len(X.indptr) - 1 if isinstance(X, CSRRows) else len(X.values)
        nothing = np.zeros((rows, 1), self.dtype)
        fields = {name: getattr(X, name) for name in X.__slots__}
        plain = type(X)(**{**fields, "order": None})
        kernel: Any = self.kernel
        kernel.raw_batch(plain.block(nothing, None), X.order, params, out)
        return out

    def with_outputs(self, loss: Loss, shift: Any, scale: Any) -> Self:
        """Return the model under another loss, with ``shift + scale * outputs`` as raw outputs."""
        other = copy(self)
        other.loss, other.output_shift, other.output_scale = loss, shift, scale
        other._kernel = None
        return other

    def with_dtype(self, dtype: Any) -> Self:
        """Return the same model for parameters and rows of another dtype."""
        other = copy(self)
        other.dtype, other._kernel = np.dtype(dtype), None
        return other
