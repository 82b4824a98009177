"""Hashes of categories and tokens, equal for equal text in every process and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Hashes:
    """Hashes that replace the values, in a tenth of the memory."""

    values: NDArray[np.uint64]  # (n,)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of the hashes."""
        return self.values.nbytes


def texts_of(values: Any) -> list[str]:
    """Return values as text; integers look the same in any numeric dtype.

    Examples
    --------
    >>> texts_of([1.0, 2.5, True, "one"])
    ['1', '2.5', 'True', 'one']
    """
    return [_text(value) for value in values]


def _text(value: object) -> str:
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def hashes_of(values: Any) -> NDArray[np.uint64]:
    """Return a 64-bit hash of the text of each value: SipHash, as in pandas.

    Examples
    --------
    >>> import pandas as pd
    >>> numbers, names = hashes_of([7]), hashes_of(pd.Index(["7"]))
    >>> bool(numbers[0] == names[0])
    True
    """
    if isinstance(values, Hashes):
        return values.values
    from pandas.api.types import infer_dtype
    from pandas.util import hash_array

    if hasattr(values, "to_numpy"):
        values = values.to_numpy(object)
    texts = values
    objects = isinstance(values, np.ndarray) and values.dtype.kind == "O"
    if not objects or infer_dtype(values, skipna=False) != "string":
        texts = np.empty(len(values), object)
        texts[:] = texts_of(values)
    try:
        return hash_array(texts, categorize=False)
    except UnicodeEncodeError:  # a lone surrogate, as in a file name that is not UTF-8
        known = np.empty(len(texts), object)
        known[:] = [text.encode("utf-8", "surrogatepass").decode("latin-1") if _is_odd(text)
                    else text for text in texts]  # fmt: skip
        return hash_array(known, categorize=False)


def _is_odd(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def salt_of(name: object) -> int:
    """Return a number by which equal values of different columns differ."""
    return int(hashes_of([name])[0])


def buckets_of(values: Any, n_buckets: int, salt: int = 0) -> NDArray[np.int64]:
    """Return the bucket of each value."""
    return ((hashes_of(values) + np.uint64(salt)) % np.uint64(n_buckets)).astype(np.int64)
