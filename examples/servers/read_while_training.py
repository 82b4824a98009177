"""Read a model while it trains
============================

A fit writes its model into a named parameter server. Another process predicts with it meanwhile.
"""

from tempfile import TemporaryDirectory

from distributed import Client
from sklearn.datasets import load_breast_cancer

import dps


def follow(X, y):
    """Score the newest model three times, in another process."""
    seen = {}
    with dps.ServedModel("tumours") as served:
        while len(seen) < 3:
            if served.epochs > max(seen, default=0):
                seen[served.epochs] = round(served.score(X, y), 3)
        served.server.assign("enough", 1.0)
    return seen


if __name__ == "__main__":
    X, y = load_breast_cancer(return_X_y=True)
    with Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client:
        server = dps.ParameterServer({"enough": 0.0}, name="tumours", mirror=True)
        following = client.submit(follow, X, y)
        model = dps.LinearClassifier(server=server)
        while not server.pull("enough"):
            model.partial_fit(X, y, classes=[0, 1])
        print("accuracy by epochs, seen elsewhere:", following.result())
        with TemporaryDirectory() as path:
            server.save(path)
            server.close()
            with dps.ParameterServer.load(path, n_shards=3) as loaded:
                same = dps.ServedModel(loaded).score(X, y) == model.score(X, y)
                print("the same, loaded into three shards:", same)

# %%
# It prints::
#
#     accuracy by epochs, seen elsewhere: {1: 0.974, 2: 0.984, 3: 0.981}
#     the same, loaded into three shards: True
