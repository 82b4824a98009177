"""Late flights of 2001 as a dataframe of strings and numbers: read, encoded and trained on.

    python tests/benchmarks/encode.py [--rows N] [--repeat K] [--quick]

2,400,000 training rows, those whose index is not divisible by 5, as a parquet file of 12 row
groups, read by dask and by pandas. Columns are origin, destination, hour, day of week, day of
month, month, the pair of origin and destination, and the distance. dps runs on a LocalCluster of
two processes. "encode": seven columns that lie in memory, in the workers' for dps, to CSR.
"whole": from the file to the fitted model, everything at its defaults; the pair is a column of
strings, or an interaction that is hashed. "peak MB" is what a contender adds to the memory, and
"times the data" that by the bytes of the encoded training rows and labels.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import wait
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dps import LinearClassifier
from dps.preprocessing import FrameEncoder
from flights import DATA, csr_bytes
from measure import bars, cluster, megabytes, options, table, take_turns

PARTS = ("hour", "day_of_week", "day", "month")
PAIR = ("origin", "destination")
ENCODE, OURS = "scikit-learn OneHotEncoder", "dps, pair as strings"
WHOLE = "pandas, OneHotEncoder, LogisticRegression"


def write(path: Path, rows: int, groups: int) -> pd.DataFrame:
    """The training rows as a file; the test rows."""
    frame = pd.read_parquet(DATA).iloc[:rows]
    test = np.arange(len(frame)) % 5 == 0
    train = frame[~test].reset_index(drop=True)
    train.to_parquet(path, row_group_size=-(-len(train) // groups))
    return frame[test].reset_index(drop=True)


def known(frame: Any, pair: bool = True, as_categories: bool = True) -> Any:
    """The facts about a flight before it leaves, from a frame of pandas or Dask."""
    columns = {name: getattr(frame["date"].dt, name) for name in PARTS}
    if as_categories:
        columns = {name: column.astype("category") for name, column in columns.items()}
    if pair:
        columns["pair"] = frame["origin"] + "-" + frame["destination"]
    return frame[["origin", "destination", "distance"]].assign(**columns)


def late(frame: Any) -> Any:
    return (frame["delay"] > 15).astype("int8")


def fit_dps(path: Path, hashed: bool, turn: int) -> LinearClassifier:
    frame = dd.read_parquet(path, split_row_groups=True)
    encoder: Any = FrameEncoder(interactions=[PAIR]) if hashed else "auto"
    model = LinearClassifier(encoder=encoder, random_state=turn)
    return model.fit(known(frame, pair=not hashed), late(frame))


def fit_peer(path: Path, turn: int) -> Any:
    frame = pd.read_parquet(path)
    encoder = make_column_transformer(
        (OneHotEncoder(dtype=np.float32, handle_unknown="ignore"), [*PAIR, *PARTS, "pair"]),
        (StandardScaler(), ["distance"]),
    )
    model = make_pipeline(encoder, LogisticRegression())
    return model.fit(known(frame, as_categories=False), late(frame))


def encode_dps(frame: Any, turn: int) -> Any:
    encoder = FrameEncoder().fit(frame)
    wait(encoder.transform(frame).persist())
    return encoder


def encode_speed(client: Any, path: Path, repeat: int) -> float:
    """Measure the speed of encoding relative to scikit-learn."""
    local = known(pd.read_parquet(path), as_categories=False).drop(columns="distance")
    lazy = known(dd.read_parquet(path, split_row_groups=True)).drop(columns="distance")
    frame = client.persist(lazy.optimize())  # Dask optimises no further, and knows its partitions
    wait(frame)
    contenders = {
        "dps FrameEncoder": partial(encode_dps, frame),
        ENCODE: lambda turn: OneHotEncoder(dtype=np.float32).fit(local).transform(local).shape,
    }
    medians = take_turns(contenders, repeat, lambda found: {}, client)
    peer = medians[ENCODE]["seconds"]
    table(
        ("encode", "seconds", "times faster"),
        (
            (name, f"{row['seconds']:.2f}", f"{peer / row['seconds']:.1f}")
            for name, row in medians.items()
        ),
    )
    return peer / medians["dps FrameEncoder"]["seconds"]


def judge(test: pd.DataFrame, model: Any) -> dict[str, float]:
    """The loss on the test rows; of dps, the bytes of the encoded training rows and labels."""
    ours = isinstance(model, LinearClassifier)
    X = known(test, pair="pair" in model.feature_names_in_, as_categories=ours)
    found = {"loss": log_loss(late(test), model.predict_proba(X)[:, 1])}
    if ours:
        rows = sum(rank.rows for rank in model.plan_.ranks)
        found["data"] = (csr_bytes(model.encoder_.transform(X)) / len(X) + 1) * rows
    return found


def main() -> None:
    chosen = options(__doc__, repeat=3, rows=3_000_000)
    if not DATA.exists():
        print("the data is not here, left out\n")
        return
    rows, groups = (5_000, 2) if chosen.quick else (chosen.rows, 12)
    with tempfile.TemporaryDirectory() as folder, cluster() as client:
        path, small = Path(folder, "flights.parquet"), Path(folder, "few.parquet")
        write(small, 1_000, 2)
        fit_dps(small, True, 0)  # workers have imported libraries before memory is watched
        test = write(path, rows, groups)
        contenders = {
            OURS: partial(fit_dps, path, False),
            "dps, pair hashed": partial(fit_dps, path, True),
            WHOLE: partial(fit_peer, path),
        }
        medians = take_turns(contenders, chosen.repeat, partial(judge, test), client)
        speed = encode_speed(client, path, chosen.repeat)
    ours, peer = medians[OURS], medians[WHOLE]["seconds"]
    times_the_data = {
        name: row["added"] / row["data"] for name, row in medians.items() if "data" in row
    }
    table(
        ("whole", "seconds", "times faster", "test log loss", "peak MB", "times the data"),
        (
            (
                name, f"{row['seconds']:.2f}", f"{peer / row['seconds']:.1f}",
                f"{row['loss']:.4f}", megabytes(row["added"]),
                f"{times_the_data[name]:.2f}" if name in times_the_data else "",
            )
            for name, row in medians.items()
        ),
    )  # fmt: skip
    bars(
        ("encode: times faster than OneHotEncoder", speed, ">=", 5),
        ("encode: test log loss of the whole", ours["loss"], "<=", 0.4657),
        ("encode: the whole, times faster than scikit-learn", peer / ours["seconds"], ">=", 8),
        ("encode: memory of the whole, times the data", times_the_data[OURS], "<=", 1.3),
    )


if __name__ == "__main__":
    main()
