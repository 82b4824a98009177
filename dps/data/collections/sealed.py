"""Functions for Dask's graphs that the scheduler can pass on without importing dps.

Dask's scheduler unpickles the graphs that it receives and pickles their tasks again for workers. It
does not run them, so it should not need dps. A sealed function travels as bytes and is opened when
it is unpickled. If that fails, it stays closed until it is called or unpickled elsewhere. (Opening
it in the call alone would not do: tasks run in several threads, and concurrent first imports of the
same packages can fail.) The function that opens it travels as byte code, like functions of a
notebook: all processes have the same minor version of Python, which Dask requires anyway.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any


class sealed:
    """A function that processes can pass on without importing it.

    *constants, **options: its first arguments. Futures and other values that Dask must see belong
        into the call.
    """

    def __init__(self, function: Callable[..., Any], *constants: Any, **options: object) -> None:
        if constants or options:
            function = partial(function, *constants, **options)
        self._function = function
        while isinstance(function, partial):
            function = function.func
        self.__name__ = function.__name__  # Dask names tasks by it

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The function's signature, in which Dask looks for the arguments that blocks need."""
        return inspect.signature(self._function)

    def __dask_tokenize__(self) -> Any:
        from dask.tokenize import normalize_token

        return "dps-sealed", normalize_token(self._function)

    @cached_property
    def contents(self) -> bytes:
        """The pickled function."""
        from distributed.protocol.pickle import dumps  # it handles more types than cloudpickle

        return bytes(dumps(self._function))

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _OPENER, (self.contents,)


def _opener() -> Callable[[bytes], Any]:
    """Make the function that opens a pickled one; a nested function is pickled by value."""

    def opened(contents: bytes) -> Callable[..., Any]:
        import pickle

        try:
            function: Callable[..., Any] = pickle.loads(contents)
        except Exception:  # whatever may be missing or different there
            return Closed(contents)
        return function

    class Closed:
        def __init__(self, contents: bytes) -> None:
            self.contents = contents

        def __call__(self, *args: Any, **kwargs: object) -> Any:
            import pickle

            return pickle.loads(self.contents)(*args, **kwargs)

        def __reduce__(self) -> Any:
            return opened, (self.contents,)

    return opened


class _Opener:
    """Opens pickled functions; its own pickle is byte code, made once."""

    @cached_property
    def _pickled(self) -> bytes:
        import cloudpickle

        return bytes(cloudpickle.dumps(_opener()))

    def __call__(self, contents: bytes) -> Any:
        return _opener()(contents)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        import cloudpickle

        return cloudpickle.loads, (self._pickled,)


_OPENER = _Opener()


def identity(value: object) -> Any:
    """Hold a value for other tasks."""
    return value


def check_pickles(function: Any) -> None:
    """Raise if a function has an argument that cannot be pickled.

    Raises TypeError: the message names the attribute and its class.
    """
    import cloudpickle

    def search(value: Any, place: str) -> None:
        try:
            cloudpickle.dumps(value)
            return
        except Exception as error:
            why = error
        bound = (*value.args, *value.keywords.values()) if isinstance(value, partial) else ()
        named = vars(value) if hasattr(value, "__dict__") else {}
        for part in bound:
            search(part, type(part).__name__)
        for name, part in named.items():
            search(part, f"{type(value).__name__}.{name}")
        raise TypeError(
            f"{place} cannot be sent to workers ({why}): make it where it is first used, and leave "
            "it out of __getstate__"
        ) from why

    search(function, function.__name__)
