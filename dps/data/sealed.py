"""Functions for Dask's graphs that travel closed, and are opened where they are called.

Dask's scheduler unpickles the graphs that it is sent, and pickles their tasks anew for workers. It
runs none of them, so it should not need dps: what of dps is in a graph is bytes until then.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
from dask.utils import funcname

__all__ = ["itself", "sealed"]


class sealed:
    """A function that who passes it on does not need to be able to import.

    Parameters
    ----------
    function : callable
    *constants, **options
        Its first arguments. What Dask must see, such as Futures, belongs into the call instead.
    """

    def __init__(self, function: Callable[..., Any], *constants: Any, **options: Any) -> None:
        self.__name__ = funcname(function)
        if constants or options:
            function = partial(function, *constants, **options)
        self._contents: bytes = cloudpickle.dumps(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Open and call it."""
        return pickle.loads(self._contents)(*args, **kwargs)

    def __dask_tokenize__(self) -> tuple[str, bytes]:
        return "dps-sealed", self._contents

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return cloudpickle.loads, (cloudpickle.dumps(_opener(self._contents)),)


def _opener(contents: bytes) -> Callable[..., Any]:
    """What is left of it elsewhere: a function that is no module's, and so is pickled whole."""

    def call(*args: Any, **kwargs: Any) -> Any:
        import pickle

        return pickle.loads(contents)(*args, **kwargs)

    return call


def itself(value: Any) -> Any:
    """The task that holds something for others."""
    return value
