"""The number of shards with the fastest steps, by what messages and bytes between hosts cost.

S shards are on S of H hosts. In a step each host sends its part of the gradient to every shard,
and has the answer. A host with a shard answers the H - 1 others and asks the S - 1 other shards;
its link carries the parts of H - 1 hosts, each nbytes / S long:

    seconds(S) = MESSAGE (H + S - 2) + BYTE nbytes (H - 1) / S

Where ranks of a host send by themselves, all of it is multiplied by the ranks of a host, and the
same S is the fastest.
"""

from __future__ import annotations

#: Seconds of a host for a message and its answer: system calls, and waking a thread. With 1 kB each
#: further shard costs 60 us on 4 hosts and 100 to 200 us on 8, where four hosts share two cores
#: (`tests/benchmarks/hosts.py --only shards`).
MESSAGE = 2e-4
#: Seconds per byte to a shard and back. With 4 and 40 MB on 2 hosts a second shard saves half of
#: 0.5 to 1.1 ns per byte (same benchmark). Over 10 Gbit/s it would be 1.6 ns.
BYTE = 5e-10


def seconds_of_a_step(n_shards: int, n_hosts: int, nbytes: float) -> float:
    """Return the expected seconds per step for exchanging `nbytes` per host."""
    return MESSAGE * (n_hosts + n_shards - 2) + BYTE * nbytes * (n_hosts - 1) / n_shards


def fastest_shards(n_hosts: int, nbytes: float) -> int:
    """Return the fastest number of shards, at most one per host, for `nbytes` per host.

    Examples
    --------
    >>> [fastest_shards(8, nbytes) for nbytes in (404, 1e5, 1e6, 1e7)]
    [1, 1, 4, 8]
    """
    return min(range(1, n_hosts + 1), key=lambda n: seconds_of_a_step(n, n_hosts, nbytes))
