"""Parameters for the maker of a model: ``model__hidden=64`` calls `model` with ``hidden=64``.

Clones, searches, `set_params` and files treat them as parameters of the estimator.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Self

from sklearn.base import BaseEstimator


class MakesModel(BaseEstimator):
    """An estimator with a class or function that makes its model."""

    #: Parameters that may be code, which is not saved; the first one makes the model.
    _code: ClassVar[tuple[str, ...]]

    @classmethod
    def _is_option(cls, name: str) -> bool:
        """True if a parameter is for the maker of the model."""
        made, found, option = name.partition("__")
        return made == cls._code[0] and bool(found) and option.isidentifier()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return parameters, including those for the maker of the model."""
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
        """Return options for the maker of the model, by its own names.

        Raises TypeError: there are options, but the parameter is a model and not a maker.
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
    """Make the constructor of a :class:`MakesModel` take such parameters; its signature stays."""
    plain = cls.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **given: object) -> None:
        options = {n: given.pop(n) for n in list(given) if cls._is_option(n)}
        plain(self, *args, **given)
        self.set_params(**options)

    cls.__init__ = __init__
    return cls
