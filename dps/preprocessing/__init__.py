"""Encoders of dataframes, for use alone, in a Pipeline, or inside an estimator.

pandas is imported when a frame comes, not before.
"""

from __future__ import annotations

from dps.preprocessing.encoder import FrameEncoder

__all__ = ["FrameEncoder"]


def __dir__() -> list[str]:
    return __all__
