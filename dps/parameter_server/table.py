"""A table of embeddings, as users specify it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dps._parameters import check_integer, check_real
from dps.models.layout import TableSpec

_CHOICES = {"init": ("zeros", "uniform", "normal"), "dtype": ("float32", "float64")}
#: Largest number of elements of a table: more than any machine holds.
_MOST_ELEMENTS = 1 << 48


@dataclass(frozen=True, kw_only=True)
class EmbeddingTable:
    """A table of a server, whose rows are created when their id is first written.

    An id without a row reads as the row that it would get, which depends on `random_state` and the
    id only.

    Parameters
    ----------
    dim : int
        Number of elements of a row.
    init : {"zeros", "uniform", "normal"}, default="zeros"
        Values of a new row: zeros, uniform in [-scale, scale), or normal with standard deviation
        `scale`.
    scale : float, default=0.05
    capacity : int, default=65536
        Minimal number of rows that fit on all shards together. Memory is taken when the server is
        made.
    random_state : int, default=0
    dtype : {"float32", "float64"}, default="float32"

    Examples
    --------
    >>> import dps
    >>> dps.EmbeddingTable(dim=16, init="normal").capacity
    65536
    """

    dim: int
    init: Literal["zeros", "uniform", "normal"] = "zeros"
    scale: float = 0.05
    capacity: int = 1 << 16
    random_state: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_integer(self, "dim", 1, _MOST_ELEMENTS)
        check_integer(self, "capacity", 1, _MOST_ELEMENTS // int(self.dim))
        check_integer(self, "random_state", 0, (1 << 64) - 1)
        check_real(self, "scale", 0.0, float("inf"), closed="left")
        object.__setattr__(self, "dtype", np.dtype(self.dtype).name)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"The {name!r} parameter of EmbeddingTable must be a str among "
                    f"{list(choices)}. Got {getattr(self, name)!r} instead."
                )

    @property
    def nbytes(self) -> int:
        """Bytes of `capacity` rows."""
        return self.capacity * self.dim * np.dtype(self.dtype).itemsize

    def layout(self, rows: int) -> TableSpec:
        """Return the initial rows of a table with room for some rows."""
        zeros = self.dim if self.init == "zeros" else 0
        return TableSpec(rows, self.dim, zeros, self.scale, normal=self.init == "normal")
