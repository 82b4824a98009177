"""A queue of gradients: workers put theirs in, and whoever fills it applies the mean of ten.

The queue is a sum and a count in one tensor. A function on the shard takes both out at once, so
that each gradient is in one mean, and no token or lock is needed.
"""

import numpy as np
from distributed import Client
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import dps

X, y = load_breast_cancer(return_X_y=True)
X = np.c_[StandardScaler().fit_transform(X), np.ones(len(y))]


def take_mean(queue):
    """On the shard: the mean of what is in the queue, if that is enough; it is empty then."""
    if queue[-1] < 10:
        return None
    mean = queue[:-1] / queue[-1]
    queue[:] = 0
    return mean


def work(seed):
    """A worker: gradients of mini-batches into the queue, and means out of it."""
    server, rng = dps.ParameterServer.connect("queue"), np.random.default_rng(seed)
    for _ in range(200):
        rows = rng.integers(len(y), size=32)
        error = 1 / (1 + np.exp(-X[rows] @ server.pull("w"))) - y[rows]
        server.add("queue", np.append(error @ X[rows] / len(rows), 1))
        if (mean := server.apply("queue", take_mean)[0]) is not None:
            server.push("w", mean)


if __name__ == "__main__":
    with Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client:
        tensors = {"w": np.zeros(X.shape[1]), "queue": np.zeros(X.shape[1] + 1)}
        with dps.ParameterServer(
            tensors, optimizer="sgd", learning_rate=1.0, name="queue", n_shards=1
        ) as server:
            client.gather(client.map(work, range(4), pure=False))
            pushes = server.stats()["tensors"]["w"]["pushes"]
            left = server.pull("queue")[-1]
            print(f"{pushes} means of 10 or more of 800 gradients, {left:.0f} are left")
            accuracy = ((X @ server.pull("w") > 0) == y).mean()
            assert accuracy > 0.97
            print(f"accuracy {accuracy:.3f}")
