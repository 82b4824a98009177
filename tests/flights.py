"""The flights benchmark of the design: 2001's flights as sparse one-hot rows.

Rebuilt from the parquet file as its README says: 3,000,000 x 3,926, 8 non-zeros a row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "flights-3m.parquet"


def read_flights(rows: int | None = None) -> tuple[Any, Any]:
    """X as CSR of float32 and y (1: more than 15 minutes late), in the file's order."""
    import pandas as pd

    frame = pd.read_parquet(DATA)
    if rows is not None:
        frame = frame.iloc[:rows]
    date = frame["date"].dt
    pair = frame["origin"].astype(str) + "-" + frame["destination"].astype(str)
    columns = [
        frame["origin"], frame["destination"], date.hour, date.dayofweek, date.day, date.month, pair
    ]  # fmt: skip
    codes, width = [], 0
    for column in columns:
        code, values = pd.factorize(column, sort=True)
        codes.append(code.astype(np.int32) + width)
        width += len(values)
    distance = frame["distance"].to_numpy(np.float64)
    n = len(frame)
    indices = np.empty((n, 8), np.int32)
    indices[:, :7] = np.stack(codes, axis=1)
    indices[:, 7] = width
    data = np.ones((n, 8), np.float32)
    data[:, 7] = (distance - distance.mean()) / distance.std()
    indptr = np.arange(0, 8 * n + 1, 8, dtype=np.int32)
    X = scipy.sparse.csr_matrix((data.ravel(), indices.ravel(), indptr), shape=(n, width + 1))
    return X, (frame["delay"].to_numpy() > 15).astype(np.int8)


def split(X: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Training rows, and test rows: those whose index is divisible by 5."""
    test = np.arange(len(y)) % 5 == 0
    return X[~test], y[~test], X[test], y[test]
