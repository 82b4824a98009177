"""The cases of a test: pairs of options in place of all combinations, and slow ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """Values of a parameter whose cases are slow."""
    return [pytest.param(*_tuple(value), marks=pytest.mark.slow) for value in values]


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def pairs(indirect: Sequence[str] = (), **options: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test so that each two values of two options meet in a case.

    The product of six losses, four penalties, and five optimizers has 120 cases; the pairs have 30.
    The combination of all first values, and that of all last ones, are among them.

    indirect: options whose values a fixture of their name is given.
    """
    axes = [list(values) for values in options.values()]
    # Values may be no keys of dictionaries: their places are.
    every = list(product(*(range(len(axis)) for axis in axes)))
    missing = {met for case in every for met in combinations(enumerate(case), 2)}
    chosen = [every[0], every[-1]]
    for case in chosen:
        missing -= set(combinations(enumerate(case), 2))
    while missing:
        best = max(every, key=lambda case: len(missing & set(combinations(enumerate(case), 2))))
        missing -= set(combinations(enumerate(best), 2))
        chosen.append(best)
    cases = [tuple(axis[place] for axis, place in zip(axes, case, strict=True)) for case in chosen]
    ids = [_name(case) for case in cases]
    return pytest.mark.parametrize(",".join(options), cases, indirect=indirect, ids=ids)


def _name(case: tuple[Any, ...]) -> str:
    return "-".join(str(getattr(value, "__name__", value)) for value in case)
