"""Encoders of dataframes, for use alone, in a Pipeline, or in an estimator.

pandas is imported when it is needed.
"""

from __future__ import annotations

from dps.preprocessing.encoder import FrameEncoder

__all__ = ["FrameEncoder"]


def __dir__() -> list[str]:
    return __all__
