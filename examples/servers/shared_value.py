"""Two networks and one parameter server
=====================================

What one worker changes in a shared network, another worker sees.
"""

import numpy as np
from distributed import Client

import dps


def network(server, x):
    """Compute a network of two layers with the parameters on the server."""
    return np.maximum(x @ server.pull("hidden"), 0) @ server.pull("output")


def look(x):
    """Return the output of the network for x, on any worker."""
    return network(dps.ParameterServer.connect("shared"), x).round(3)


def change_and_look(x):
    """Change a layer, and return the output for x."""
    server = dps.ParameterServer.connect("shared")
    server.assign("output", 10 * server.pull("output"))
    return network(server, x).round(3)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    x = rng.normal(size=3)
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        first, second = client.nthreads()
        tensors = {"hidden": rng.normal(size=(3, 4)), "output": rng.normal(size=4)}
        with dps.ParameterServer(tensors, name="shared") as server:
            for what, worker, task in (
                ("at first", second, look),
                ("the first changes it", first, change_and_look),
                ("the second sees", second, look),
            ):
                found = client.submit(task, x, workers=[worker], pure=False).result()
                print(f"{what:21} {found}")
            print(f"writes: {server.versions}")

# %%
# It prints::
#
#     at first              -0.023
#     the first changes it  -0.229
#     the second sees       -0.229
#     writes: {'hidden': 0, 'output': 1}
