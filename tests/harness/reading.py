"""A source whose partitions come in another order each time they are read, and readings counted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np


class Source:
    """Reads partitions; each process that does so leaves a byte in a file."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)
        Path(file).touch()

    def __call__(self, part: Any) -> Any:
        """The rows of a partition in an order drawn by chance, which no seed repeats."""
        with open(self.file, "ab", buffering=0) as file:
            file.write(b"r")
        order = np.random.default_rng().permutation(len(part))
        return part.iloc[order] if hasattr(part, "iloc") else part[order]

    @property
    def readings(self) -> int:
        """Number of readings since the last call."""
        number = os.path.getsize(self.file)
        os.truncate(self.file, 0)
        return number
