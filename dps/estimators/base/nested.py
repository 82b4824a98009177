"""Parameters for whatever makes a model: ``model__hidden=64`` calls `model` with ``hidden=64``.

They are parameters as others are: clones, searches, `set_params` and files have them.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Self

from sklearn.base import BaseEstimator


class MakesModel(BaseEstimator):
    """An estimator whose model is made by a class or function that is given to it."""

    #: Parameters that may be code, which is not saved; the first makes the model.
    _code: ClassVar[tuple[str, ...]]

    @classmethod
    def _is_option(cls, name: str) -> bool:
        """True if a parameter is for what makes the model."""
        made, found, option = name.partition("__")
        return made == cls._code[0] and bool(found) and option.isidentifier()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters, with those for what makes the model."""
        params: dict[str, Any] = super().get_params(deep)
        return params | {n: value for n, value in vars(self).items() if self._is_option(n)}

    def set_params(self, **params: object) -> Self:
        """Set parameters, as in other estimators."""
        super().set_params(**{n: v for n, v in params.items() if not self._is_option(n)})
        for name, value in params.items():
            if self._is_option(name):
                setattr(self, name, value)
        return self

    def _options(self, makes: bool) -> dict[str, Any]:
        """Options for the maker of the model, by its own names.

        Raises TypeError: there are any, and the parameter is a model, which makes none.
        """
        prefix = f"{self._code[0]}__"
        options = {n.removeprefix(prefix): v for n, v in vars(self).items() if self._is_option(n)}
        if options and not makes:
            raise TypeError(
                f"{prefix}{next(iter(options))} is for a class or function that makes a model, and "
                f"{self._code[0]}={getattr(self, self._code[0])!r} is one: give its class"
            )
        return options


def takes_options(cls: Any) -> Any:
    """Have the constructor of a :class:`MakesModel` take such parameters; its signature stays."""
    plain = cls.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **given: object) -> None:
        options = {n: given.pop(n) for n in list(given) if cls._is_option(n)}
        plain(self, *args, **given)
        self.set_params(**options)

    cls.__init__ = __init__
    return cls
