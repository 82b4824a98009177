"""A directory of arrays and a manifest, as one bytes object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dps.files.directories import arrays_of


def pack(content: object, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the content as JSON, followed by the arrays as safetensors.

    Examples
    --------
    >>> unpack(pack({"a": 1}, {"b": np.arange(2)}), "it")
    ({'a': 1}, {'b': array([0, 1])})
    """
    from safetensors.numpy import save

    text = json.dumps(content, allow_nan=False).encode()
    data: bytes = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    return len(text).to_bytes(8, "little") + text + data


def unpack(given: bytes, what: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the content and the arrays.

    Raises ValueError: the data is not valid.
    """
    end = 8 + int.from_bytes(given[:8], "little")
    try:
        content = json.loads(given[8:end])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} holds no record ({error})") from error
    return content, arrays_of(given[end:], what)
