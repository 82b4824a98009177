"""A step through the gateway, against a plain Actor call that does the same work.

    python tests/benchmarks/gateway.py [--size N] [--repeat K] [--quick]

A LocalCluster of two processes with one thread each: a shard on one, a replica that may
not map it on the other. A step sends a float32 gradient of N elements, applies it by SGD
and brings the parameters back; once through dps, once through an Actor of Dask's own that
is handed the gradient and returns the parameters. Both in turn, medians.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from dps import Sync
from dps.modes import ChannelSpec
from dps.modes.synchronous import update
from dps.optimizers import SGD, Constant
from dps.optimizers.update import Update
from dps.server.parameter_server import ParameterServer, ShardHandle
from dps.server.placement import place
from dps.server.remote import Remote
from dps.server.shard import ParameterShard, ShardSpec
from dps.server.window import Watch, WindowSpec, drive
from measure import bars, cluster, options, table


class PlainActor:
    """The same work on a shard, by a method that takes and returns an array."""

    def __init__(self, spec: ShardSpec) -> None:
        self._shard = ParameterShard(spec)
        self._step = 0

    def push_pull(self, gradient: Any, rate: float) -> Any:
        self._step += 1
        window = self._shard.window
        operation = update(window, 0, self._step, gradient, 1, self._step, rate)
        return drive(operation, Watch(window, 30.0, 0)).copy()


def shard_spec(size: int, fit: str) -> ShardSpec:
    window = WindowSpec(fit, 0, 1, size, "float32", 0, True, 16, "digest")
    sgd = Update(SGD(), 0.0, 0.0, ((0, size, False),))
    start = np.zeros(size, np.float32)
    return ShardSpec(window, sgd, start, np.empty((0, size), np.float32), 0, False, 30.0)


def replica(actor: Any, server: ParameterServer, size: int, repeat: int) -> Any:
    """The task: milliseconds of every step either way, and what they end with."""
    sgd = Update(SGD(), 0.0, 0.0, ((0, size, False),))
    spec = ChannelSpec(0, 1, server.placement, size, "float32", Constant(0.5), sgd)
    links = server.connect(0, 1, access="gateway")
    channel = Sync().channel(spec, links)
    channel.pull()
    gradient = np.random.default_rng(0).normal(size=size).astype(np.float32)
    times: dict[str, list[float]] = {"a plain Actor call": [], "dps": []}
    for _ in range(repeat):
        for name, spent in times.items():
            began = time.perf_counter()
            if name == "dps":
                params = channel.push_pull(gradient, 1, 0.0)
            else:
                expected = actor.push_pull(gradient, 0.5).result(timeout=60)
            spent.append(1e3 * (time.perf_counter() - began))
    links[0].close()
    assert np.array_equal(params, expected)
    return times


def main() -> None:
    chosen = options(__doc__, repeat=100, size=1_000_000)
    size, repeat = (5_000, 3) if chosen.quick else (chosen.size, chosen.repeat)
    with cluster() as client:
        near, far = sorted(client.nthreads())
        actor = client.submit(PlainActor, shard_spec(size, "aa"), actor=True, workers=near)
        shard = client.submit(ParameterShard, shard_spec(size, "bb"), actor=True, workers=near)
        remote = Remote(near, shard.key, client)
        shard.result()
        handle = ShardHandle(remote.call("card", timeout=30), remote)
        server = ParameterServer((handle,), place("contiguous", [size], 1), 30.0)
        times = client.submit(replica, actor, server, size, repeat, workers=far).result()
    medians = {name: statistics.median(spent) for name, spent in times.items()}
    share = medians["dps"] / medians["a plain Actor call"]
    print(f"a step of {size:,} float32 through the gateway, {repeat} of each\n")
    table(("", "ms"), [(name, f"{spent:.2f}") for name, spent in medians.items()])
    bars(("push_pull, of the Actor call's time", share, "<=", 0.4))


if __name__ == "__main__":
    main()
