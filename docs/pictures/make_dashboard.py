"""Takes the picture of the README: the page of fits while two models are trained on flights.

    python docs/pictures/make_dashboard.py FLIGHTS.parquet [PICTURE.png] [--dark] [--width 1400]

FLIGHTS.parquet has the columns date, delay, distance, origin and destination. It is read and
encoded on a LocalCluster of two processes. Needs Chromium, bokeh and pyarrow.
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
from browser import Browser, wait
from distributed import Client, LocalCluster

from dps import LinearClassifier
from dps.preprocessing import FrameEncoder

#: Epochs of the fit in the picture after which it is taken.
_EPOCHS = 14


def read(path: Path) -> tuple[dd.DataFrame, dd.Series]:
    """What is known of a flight before it leaves, and whether it comes late."""
    flights = dd.read_parquet(path, split_row_groups=True).persist()
    time = flights["date"].dt
    known = flights[["origin", "destination", "distance"]].assign(
        hour=time.hour.astype("category"),
        weekday=time.day_of_week.astype("category"),
        day=time.day.astype("category"),
    )
    return known, flights["delay"] > 15


def main() -> None:
    """Train, look, and keep the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flights", type=Path)
    parser.add_argument(
        "picture", type=Path, nargs="?", default=Path(__file__).parent / "dashboard.png"
    )
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--height", type=int, default=1290)
    given = parser.parse_args()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
        Browser() as browser,
    ):
        known, late = read(given.flights)
        encoder = FrameEncoder().fit(known)
        X, y = encoder.transform(known).persist(), late.persist()

        def classifier(**parameters: Any) -> LinearClassifier:
            return LinearClassifier(
                early_stopping=True, random_state=0, client=client, **parameters
            )

        classifier().fit(X, y)
        steps = {"optimizer": "adagrad", "learning_rate": 0.01, "tol": None}
        classifier(max_iter=20, **steps).fit(X, y)
        dask.config.set({"dps.n_shards": 2})
        shown = classifier(mode="async", max_iter=30, **steps)
        fit = threading.Thread(target=shown.fit, args=(X, y))
        fit.start()
        browser.open(
            f"{client.dashboard_link.rpartition('/')[0]}/dps",
            width=given.width, height=given.height, dark=given.dark,
        )  # fmt: skip
        headline = "Bokeh.documents[0].get_model_by_name('headline').text"
        closed = f"{headline}.match(/<b>(\\d+)<.b><span>epochs/)"
        browser.wait(f"typeof Bokeh != 'undefined' && {closed}", "the page is there")
        wait(lambda: int((browser.value(closed) or [0, 0])[1]) >= _EPOCHS, "epochs are closed", 300)
        browser.picture(given.picture)
        fit.join()


if __name__ == "__main__":
    main()
