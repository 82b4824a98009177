"""The strength of a penalty that a fit chose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Strength(NamedTuple):
    """A multiple of the strength of "auto", and how it was found."""

    times: float = 1.0
    standardize: bool = False
    #: Multiples, mean losses of held-out rows, and whether columns were standardized.
    tried: Sequence[tuple[float, float, bool]] = ()

    def attributes(self, unit: float) -> dict[str, Any]:
        """Return the fitted attributes; `unit` is the strength of "auto"."""
        found: dict[str, Any] = {"alpha_": unit * self.times}
        if self.tried:
            found["alpha_path_"] = np.array(self.tried) * [unit, 1.0, 1.0]
        return found

    def record(self) -> list[Any]:
        """Lists and numbers for checkpoints."""
        tried = [[float(times), float(loss), kind] for times, loss, kind in self.tried]
        return [float(self.times), self.standardize, tried]

    @classmethod
    def read(cls, record: Any) -> Strength:
        """Return the strength that a record describes.

        Raises ValueError: the record is something else.
        """
        try:
            times, standardize, tried = record
            found = cls(times, standardize, [(x, loss, kind) for x, loss, kind in tried])
            numbers = [times, *(x for each in tried for x in each[:2])]
            flags = [standardize, *(each[2] for each in tried)]
            right = all(type(x) is float and math.isfinite(x) for x in numbers)
            right = right and all(type(flag) is bool for flag in flags)
            if right and all(x > 0 for x in (times, *(each[0] for each in tried))):
                return found
        except (TypeError, ValueError):
            pass
        raise ValueError(f"{record!r} is no strength of a penalty")
