"""L1 logistic regression by block proximal steps
==============================================

Li et al., OSDI 2014. In each turn the workers push the gradient of one block of features and a
bound on its curvature. When all have, a function on the shards takes the proximal step of the
block. A worker begins a turn once all turns before it, except the last DELAY, are done (bounded
delay).
"""

import time

import numpy as np
from distributed import Client
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import dps

WORKERS, BLOCKS, PASSES, DELAY, L1 = 2, 16, 80, 1, 10.0
PIXELS, DIGITS = load_digits(return_X_y=True)
X, y = StandardScaler().fit_transform(PIXELS[:, PIXELS.std(0) > 0]), DIGITS % 2


def proximal_step(features):
    """Take the step of the features that all workers have pushed; runs on a shard."""
    full = features[:, 3] == WORKERS
    w, gradient, curvature, _, steps = features[full].T
    w = w - gradient / curvature
    w = np.sign(w) * np.maximum(abs(w) - L1 / curvature, 0)
    features[full] = np.c_[w, np.zeros((len(w), 3)), steps + 1]


def work(me):
    """Push gradients of a part of the rows; runs on a worker."""
    server, x, labels = dps.ParameterServer.connect("blocks"), X[me::WORKERS], y[me::WORKERS]
    for turn in range(PASSES * BLOCKS):
        passes, last = divmod(max(turn - DELAY, 0) - 1, BLOCKS)  # the turn to wait for
        while (features := server.pull("features"))[last::BLOCKS, 4].min() <= passes:
            time.sleep(2e-4)
        error = 1 / (1 + np.exp(-x @ features[:, 0])) - labels
        block = np.arange(turn % BLOCKS, X.shape[1], BLOCKS)
        sizes = abs(x[:, block])
        message = np.zeros((len(block), 5))
        message[:, 1] = error @ x[:, block]
        message[:, 2] = sizes.T @ sizes.sum(1) / 4  # no curvature of these rows is larger
        message[:, 3] = 1
        server.add("features", message, block)
        server.apply("features", proximal_step)


def objective(w):
    """Return the loss of all rows plus the penalty."""
    return np.logaddexp(0, (1 - 2 * y) * (X @ w)).sum() + L1 * abs(w).sum()


if __name__ == "__main__":
    with Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client:
        tensors = {"features": np.zeros((X.shape[1], 5))}  # w, what is pushed (3), steps taken
        with dps.ParameterServer(tensors, name="blocks", n_shards=2) as server:
            client.gather(client.map(work, range(WORKERS), pure=False))
            w = server.pull("features")[:, 0]
    liblinear = LogisticRegression(
        solver="liblinear", l1_ratio=1, C=1 / L1, fit_intercept=False, tol=1e-6
    ).fit(X, y)
    ratio = objective(w) / objective(liblinear.coef_[0])
    assert 0.9999 < ratio < 1.01
    print(f"odd digits: {np.mean((X @ w > 0) == y):.1%} right, {sum(w == 0)} of {len(w)} are zero")
    print(f"the objective is {ratio:.4f} times liblinear's")
