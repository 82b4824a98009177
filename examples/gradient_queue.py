"""A queue of gradients
====================

Workers put gradients into a queue. The worker that fills it applies the mean of ten. The queue is
a sum and a count in one tensor, and a function on the shard takes both out at once, so each
gradient is in exactly one mean, without a token or a lock.
"""

import numpy as np
from distributed import Client
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import dps

X, y = load_breast_cancer(return_X_y=True)
X = np.c_[StandardScaler().fit_transform(X), np.ones(len(y))]


def take_mean(queue):
    """Empty the queue and return its mean, if it is full; runs on a shard."""
    if queue[-1] < 10:
        return None
    mean = queue[:-1] / queue[-1]
    queue[:] = 0
    return mean


def work(seed):
    """Put gradients of mini-batches into the queue, and take means out."""
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
