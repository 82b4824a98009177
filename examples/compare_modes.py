"""The modes side by side
======================

Trains by stochastic steps in three modes, on replicas with unequal numbers of rows, and prints
what the history says.
"""

import dask.array as da
from distributed import Client, LocalCluster

from dps import LinearClassifier


def main() -> None:
    """Fit in each mode and print what the history says."""
    rows = (40_000, 10_000, 5_000, 5_000, 20_000)
    random = da.random.RandomState(0)
    X = random.normal(size=(sum(rows), 30), chunks=(rows, 30)).persist()
    noise = random.normal(size=sum(rows), chunks=(rows,))
    y = (X[:, :3].sum(axis=1) + noise > 0).astype("int8").persist()

    print(
        f"{'mode':10}{'epochs':>7}{'loss':>9}{'rows/s':>12}{'mean staleness':>16}{'accuracy':>10}"
    )
    for mode in ("sync", "async", "allreduce"):
        model = LinearClassifier(mode=mode, optimizer="adagrad", random_state=0).fit(X, y)
        last = model.history_[-1]
        print(
            f"{mode:10}{model.n_iter_:>7}{model.loss_:>9.4f}{last['rows_per_second']:>12,.0f}"
            f"{last['staleness_mean']:>16.2f}{model.score(X, y):>10.4f}"
        )
        shares = ", ".join(f"{rank.rows:,} in {rank.steps} steps" for rank in model.plan_.ranks)
        print(f"{'':10}rows of each replica: {shares}")


if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster):
        main()
