"""Arrays whose rows are not vectors, from the matrix that replaces them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from dps._checks import count

#: Kinds of dtypes that are kept.
_KINDS = {"i": np.int64, "b": np.bool_}


@dataclass(frozen=True)
class Arrays:
    """Positions of arrays among the columns of a matrix.

    Examples
    --------
    >>> arrays = Arrays(((2, 2), ()), ("f", "i"), ("image", "age"))
    >>> arrays(np.array([[1.0, 2.0, 3.0, 4.0, 30.0]]))
    {'image': array([[[1., 2.],
            [3., 4.]]]), 'age': array([30])}
    >>> arrays.sizes, arrays.width
    ({'image': (2, 2), 'age': ()}, 5)
    """

    shapes: tuple[tuple[int, ...], ...]  # shape of a row of each
    kinds: tuple[str, ...]  # whether each holds floats, integers or booleans
    names: tuple[str, ...] = ()  # keys of a dict of arrays; empty for a tuple or a single array

    def __post_init__(self) -> None:
        several = len(self.shapes) == len(self.kinds) and len(self.names) in (0, len(self.shapes))
        if not several or not self.shapes or not {*self.kinds} <= {*"fib"}:
            raise ValueError(f"there are no arrays of {self.shapes}, {self.kinds}, {self.names}")
        for size in (size for shape in self.shapes for size in shape):
            count(size, "a size of rows", 1)

    @classmethod
    def of(cls, X: Any) -> Arrays | None:
        """Return facts about arrays without reading rows; None for a table.

        X: array of more than two dimensions, or a dict or tuple of arrays; everything else is a
            table, of NumPy or Dask.
        Raises TypeError, ValueError: a value of the dict is not a numeric array, or the dict is
            empty.
        """
        named = isinstance(X, Mapping) and not hasattr(X, "toarray")  # SciPy's DOK matrix is a dict
        if not named and not (isinstance(X, tuple) and X and all(map(_is_array, X))):
            shape = tuple(map(int, X.shape[1:])) if getattr(X, "ndim", 0) > 2 else ()
            return cls((shape,), ("f",)) if shape else None
        found = dict(sorted(X.items()) if named else enumerate(X))
        if not found:
            raise ValueError("X is an empty dict: give arrays by name")
        for name, each in found.items():
            if not _is_array(each) or not each.shape:
                raise TypeError(
                    f"X[{name!r}] is a {type(each).__name__}: of several inputs each must be an "
                    "array of NumPy or Dask, with as many rows as the others; give columns as one "
                    "dataframe to a model that takes='columns'"
                )
            if each.dtype.kind not in "fiub":
                raise TypeError(f"X[{name!r}] holds {each.dtype}, which are no numbers")
        shapes = tuple(tuple(map(int, each.shape[1:])) for each in found.values())
        kinds = tuple(each.dtype.kind.replace("u", "i") for each in found.values())
        return cls(shapes, kinds, tuple(map(str, found)) if named else ())

    @property
    def widths(self) -> list[int]:
        """Columns of each array."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def width(self) -> int:
        """Columns of all arrays."""
        return sum(self.widths)

    @property
    def sizes(self) -> Any:
        """The shape of a row, or shapes for several arrays; an int stands for a vector."""
        return self._given([shape[0] if len(shape) == 1 else shape for shape in self.shapes])

    def __call__(self, X: Any) -> Any:
        """Return the arrays of rows: a dict, a tuple, or a single array.

        X: ndarray of shape (rows, width).
        """
        found = []
        places = zip(self.shapes, self.kinds, self.widths, accumulate(self.widths), strict=True)
        for shape, kind, width, stop in places:
            part = X[:, stop - width : stop].reshape(len(X), *shape)
            found.append(part.astype(_KINDS[kind]) if kind in _KINDS else part)
        return self._given(found)

    def _given(self, each: Sequence[Any]) -> Any:
        if self.names:
            return dict(zip(self.names, each, strict=True))
        return tuple(each) if len(each) > 1 else each[0]


def _is_array(value: Any) -> bool:
    """True for arrays of NumPy or Dask; a Delayed has every attribute, but no tuple."""
    shaped = isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "reshape")
    return shaped and not hasattr(value, "toarray")
