"""The parameter server: reads and writes a second of one caller, on its host and between hosts.

    python tests/benchmarks/server.py [--repeat K] [--rows N] [--calls N] [--quick]

The caller makes the next call when it has its answer; medians. On one host the caller is this
process, and the shard and its mirror are on two workers of a LocalCluster. Between hosts the caller
is a task in one network namespace (`namespaces.py`, as root on Linux), and the shard is in another.
Without namespaces the caller uses no mapped memory. Tensors have 1,000 float32. Each call draws
1,000 keys from a full table of `--rows` rows of 16 float32. Last, a mirror of 100 bytes per row is
killed, and this process writes while another one is filled.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from distributed import Client

import dps
from dps.parameter_server.client import access
from measure import bars, cluster, options, table
from namespaces import cluster_of_hosts, why_not

N, DIM, AT_ONCE = 1000, 16, 100_000


def rate(call: Callable[[int], Any], calls: int, repeat: int) -> float:
    """Calls a second, the median of some runs after a warm-up."""
    found = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        for number in range(calls):
            call(number)
        found.append(calls / (time.perf_counter() - began))
    return statistics.median(found[1:])


def tensor(client: Client, **more: Any) -> dps.ParameterServer:
    return dps.ParameterServer(
        {"w": np.zeros(N, np.float32)}, learning_rate=0.01, client=client, **more
    )


def mirrored(client: Client, calls: int, repeat: int) -> float:
    gradient = np.ones(N, np.float32)
    with tensor(client, mirror=True) as server:
        return rate(lambda _: server.push("w", gradient), calls, repeat)


def on_one_host(client: Client, calls: int, rows: int, repeat: int) -> dict[str, float]:
    gradient, found = np.ones(N, np.float32), {}
    with tensor(client) as server:
        found["pull, mapped"] = rate(lambda _: server.pull("w"), calls, repeat)
        found["push, on one host"] = rate(lambda _: server.push("w", gradient), calls, repeat)
    emb = dps.EmbeddingTable(dim=DIM, init="normal", capacity=rows)
    with dps.ParameterServer({"emb": emb}, learning_rate=0.01, client=client) as server:
        for first in range(0, rows, AT_ONCE):
            server.add("emb", 1.0, np.arange(first, min(rows, first + AT_ONCE)))
        keys = np.random.default_rng(0).integers(rows, size=(max(calls // 10, 1), N))
        one = np.ones((N, DIM), np.float32)
        pull, push = f"pull of {N:,} keys, mapped", f"push of {N:,} keys, on one host"
        found[pull] = rate(lambda n: server.pull("emb", keys[n]), len(keys), repeat)
        found[push] = rate(lambda n: server.push("emb", one, keys[n]), len(keys), repeat)
    return found


def push_pulls(server: dps.ParameterServer, calls: int, repeat: int) -> float:
    gradient = np.ones(N, np.float32)
    return rate(lambda _: server.push_pull("w", gradient), calls, repeat)


def copied(client: Client, size: int) -> tuple[float, float]:
    """Seconds of the longest write while another mirror is filled, and until it is whole."""
    options = {"name": "copied", "n_shards": 1, "mirror": True, "client": client}
    with dps.ParameterServer({"w": np.zeros(size)}, **options) as server:
        shard = server.stats()["shards"][0]
        pid = client.run(os.getpid, workers=[shard["mirror"]])[shard["mirror"]]
        server.add("w", 1.0, slice(0, 10))
        os.kill(pid, signal.SIGKILL)
        began, looked, longest = time.perf_counter(), 0.0, 0.0
        while True:
            before = time.perf_counter()
            server.add("w", 1.0, slice(0, 10))
            now = time.perf_counter()
            longest = max(longest, now - before)
            if now - looked > 0.1:
                looked = now
                if server.stats()["shards"][0]["mirror"]:
                    return longest, now - began


@contextmanager
def between_hosts() -> Iterator[Callable[..., float]]:
    """A function that counts push_pulls, on another host than the shard if that can be."""
    if reason := why_not():
        print(f"{reason}: a stream on one host stands for one between hosts\n")
        with cluster(1) as client, mock.patch.object(access, "map_parts", return_value=None):
            yield lambda *args: push_pulls(tensor(client), *args)
        return
    with cluster_of_hosts(2, 1) as made:
        near, far = sorted(made.client.nthreads())
        with tensor(made.client, workers=[near], name="far") as server:
            yield lambda *args: made.client.submit(
                push_pulls, server, *args, workers=[far], pure=False
            ).result()


def main() -> None:
    chosen = options(__doc__, repeat=5, rows=10_000_000, calls=10_000)
    if chosen.quick:
        chosen.rows, chosen.calls = 20_000, 100
    with cluster(1) as client:
        found = on_one_host(client, chosen.calls, chosen.rows, chosen.repeat)
    with cluster(2) as client:
        found["push, mirrored, on one host"] = mirrored(client, chosen.calls, chosen.repeat)
    with cluster(3) as client:
        longest, whole = copied(client, chosen.rows * 25 // 2)
    far = f"push_pull, {'stream' if why_not() else 'between hosts'}"
    with between_hosts() as count:
        found[far] = count(chosen.calls, chosen.repeat)
    print(f"{N:,} float32; a table of {chosen.rows:,} rows\n")
    table(("", "a second"), ((name, f"{each:,.0f}") for name, each in found.items()))
    print(
        f"\nA new mirror of {chosen.rows / 1e7:.3g} GB: the longest of the writes meanwhile took "
        f"{longest:.2f} s, and the mirror was whole after {whole:.1f} s"
    )
    bars(
        ("server: seconds of the longest write while a mirror is filled", longest, "<=", 0.5),
        ("server: pulls a second, mapped", found["pull, mapped"], ">=", 100_000),
        ("server: push_pulls a second through a stream", found[far], ">=", 8_000),
        ("server: pulls of keys a second", found[f"pull of {N:,} keys, mapped"], ">=", 5_000),
    )


if __name__ == "__main__":
    main()
