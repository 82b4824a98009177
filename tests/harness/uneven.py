"""Data with eight times as many parts on one worker as on another, and a loss that takes time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client

from dps.losses import LogLoss

ROWS = 50


@dataclass(frozen=True)
class Slow(LogLoss):
    """A loss that takes `seconds` per part."""

    seconds: float = 0.0

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        time.sleep(self.seconds)
        return LogLoss.evaluate(self, y, raw, weight, out)


def features(number: int) -> Any:
    return np.random.default_rng(number).normal(size=(ROWS, 6))


def labels(number: int) -> Any:
    return (features(number)[:, 0] > 0).astype(int)


def uneven(client: Client, workers: Sequence[str], slow: int) -> tuple[Any, Any]:
    """Parts that lie on these workers, eight on the slow one and one on each other."""
    homes = [worker for n, worker in enumerate(workers) for _ in range(8 if n == slow else 1)]

    def put(function: Any) -> list[Any]:
        return [
            client.submit(function, n, workers=[home], pure=False) for n, home in enumerate(homes)
        ]

    return put(features), put(labels)
