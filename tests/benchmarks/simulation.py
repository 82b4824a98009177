"""Steps of hosts as a discrete-event model: what they cost by cores, cables and the order of waits.

    python tests/benchmarks/simulation.py [--repeat K] [--quick]

Processes are generators: each yields the time at which it goes on, or an `Event`. A core or a cable
serves requests one after the other. Steps go as in `dps/_runtime`: ranks send to each shard
and take its answers; a shard works once all have arrived; ring, racks, async and local steps
likewise. The costs of messages, bytes and arithmetic are found on two hosts, which are
network namespaces of this machine (`hosts.py`), and compared with 2, 4 and 8 of them, which share
its cores. Then up to a thousand hosts have cores and a network of their own.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import psutil
from scipy.optimize import least_squares

from dps._cores import usable_cores
from dps.server.sharding import fastest_shards
from hosts import Place, exchanging, speed
from measure import bars, options, table
from namespaces import why_not

Process = Generator[Any, None, None]


class Event:
    """Something that processes wait for; it happens when it has been counted `times` times."""

    def __init__(self, clock: Clock, times: int = 1) -> None:
        self._clock, self.left, self.waiting = clock, times, []

    def count(self) -> bool:
        """Count once; True for the last time."""
        self.left -= 1
        if self.left == 0:
            for process in self.waiting:
                self._clock.resume(self._clock.now, process)
        return self.left == 0


class Clock:
    """The time, and all processes that go on later."""

    def __init__(self) -> None:
        self.now, self._later, self._order = 0.0, [], itertools.count()

    def resume(self, time: float, process: Process) -> None:
        heapq.heappush(self._later, (time, next(self._order), process))

    def start(self, process: Process) -> None:
        self.resume(self.now, process)

    def use(self, servers: list[float], seconds: float) -> float:
        """When a request is done that takes the first free one of some cores, or cables."""
        done = max(self.now, servers[0]) + seconds
        heapq.heapreplace(servers, done)
        return done

    def run(self) -> float:
        """Run until nothing is left; the time at the end."""
        while self._later:
            self.now, _, process = heapq.heappop(self._later)
            for wanted in process:
                if not isinstance(wanted, Event):
                    self.resume(wanted, process)
                    break
                if wanted.left > 0:
                    wanted.waiting.append(process)
                    break
        return self.now


@dataclass(frozen=True)
class Costs:
    """Seconds."""

    message: float  # of a core, to send one, or to wake the thread that takes it
    byte: float  # of a core, at either end
    add: float  # of an element of a rank's gradient
    update: float  # of a parameter


@dataclass(frozen=True)
class Network:
    """Hosts and their cables."""

    hosts: int
    cores: float = 16  # of a host; `shared`: of all together
    shared: bool = False
    bandwidth: float = 10e9 / 8  # bytes a second of a cable, each way; 0: no limit
    latency: float = 30e-6


@dataclass(frozen=True)
class Model:
    """A model and its step."""

    size: int  # parameters
    compute: float  # seconds of a core, a step of a rank
    keys: int = 0  # that a batch touches, where steps go by keys; else all parameters go
    width: int = 1  # elements of a key
    itemsize: int = 4

    @property
    def nbytes(self) -> float:
        """Bytes of a gradient."""
        return self.keys * (8 + self.width * self.itemsize) or self.size * self.itemsize

    @property
    def elements(self) -> int:
        return self.keys * self.width or self.size


class Hosts:
    """The cores and cables of hosts during some steps."""

    def __init__(self, costs: Costs, network: Network, model: Model, shards: int) -> None:
        self.clock, self.costs, self.network, self.model = Clock(), costs, network, model
        self.n, self.shards, self.part = network.hosts, shards, model.nbytes / shards
        n_cores = max(1, round(network.cores))
        every = [0.0] * n_cores
        self._slow = n_cores / network.cores
        self._cores = [every if network.shared else [0.0] * n_cores for _ in range(self.n)]
        self._out, self._in = ([[0.0] for _ in range(self.n)] for _ in range(2))

    def core(self, host: int, seconds: float) -> float:
        return self.clock.use(self._cores[host], seconds * self._slow)

    def handled(self, host: int, nbytes: float) -> float:
        """When a host has sent or taken a message."""
        return self.core(host, self.costs.message + self.costs.byte * nbytes)

    def woken(self, host: int) -> float:
        """When a thread goes on that has slept."""
        return self.core(host, self.costs.message)

    def carried(self, start: int, stop: int, nbytes: float) -> Process:
        """A message that a host has handed over, until the other one has taken it."""
        clock, network = self.clock, self.network
        if network.bandwidth:
            yield clock.use(self._out[start], nbytes / network.bandwidth)
        yield clock.now + network.latency
        if network.bandwidth:
            yield clock.use(self._in[stop], nbytes / network.bandwidth)
        yield self.handled(stop, nbytes)

    def seconds(self, steps: int) -> float:
        return self.clock.run() / steps


class Exchange:
    """One exchange of some members over shards; member s has shard s."""

    def __init__(self, hosts: Hosts, members: Sequence[int], update: bool) -> None:
        clock, self.hosts, self.members, self.update = hosts.clock, hosts, members, update
        self.shards = min(hosts.shards, len(members))
        self.part = hosts.model.nbytes / self.shards
        self.arrived = [Event(clock, len(members)) for _ in range(self.shards)]
        self.done = [Event(clock) for _ in range(self.shards)]

    def member(self, place: int) -> Process:
        """A member's part: it sends to all shards, and takes their answers."""
        hosts, host = self.hosts, self.members[place]
        answers = {}
        for shard in range(self.shards):
            if shard == place:
                yield hosts.core(host, hosts.costs.byte * self.part)
                self._arrives(shard)
                continue
            yield hosts.handled(host, self.part)
            answers[shard] = Event(hosts.clock)
            hosts.clock.start(self._served(place, shard, answers[shard]))
        for shard in range(self.shards):
            if shard == place:
                yield self.done[shard]
                yield hosts.woken(host)
            else:
                yield answers[shard]

    def _served(self, place: int, shard: int, answer: Event) -> Process:
        """The way of a member's message, through the shard and back."""
        hosts, own, other = self.hosts, self.members[place], self.members[shard]
        yield from hosts.carried(own, other, self.part)
        self._arrives(shard)
        yield self.done[shard]
        yield hosts.woken(other)
        yield hosts.handled(other, self.part)
        yield from hosts.carried(other, own, self.part)
        answer.count()

    def _arrives(self, shard: int) -> None:
        if self.arrived[shard].count():
            self.hosts.clock.start(self._worked(shard))

    def _worked(self, shard: int) -> Process:
        """Sums and updates, in slices of all members where there is enough to share."""
        hosts, n = self.hosts, len(self.members)
        elements = hosts.model.elements / self.shards
        work = elements * (n * hosts.costs.add + self.update * hosts.costs.update)
        slices = min(n, max(1, int(elements // 16_384)))
        last = Event(hosts.clock, slices)
        for _ in range(slices):
            hosts.clock.start(self._slice(shard, work / slices, last))
        yield last
        self.done[shard].count()

    def _slice(self, shard: int, seconds: float, last: Event) -> Process:
        yield self.hosts.core(self.members[shard], seconds)
        last.count()


def _exchanged(
    costs: Costs, network: Network, model: Model, steps: int, shards: int, held: bool, period: int
) -> float:
    """Sync, or all-reduce where ranks apply the mean themselves; with local steps in between."""
    hosts = Hosts(costs, network, model, shards)
    exchanges = [Exchange(hosts, range(hosts.n), not held) for _ in range(steps)]

    def rank(host: int) -> Process:
        for exchange in exchanges:
            own = costs.update * model.elements * held
            yield hosts.core(host, period * model.compute + (period - 1) * own)
            yield from exchange.member(host)
            yield hosts.core(host, own)

    for host in range(hosts.n):
        hosts.clock.start(rank(host))
    return hosts.seconds(steps * period)


def sync(costs: Costs, network: Network, model: Model, steps: int, shards: int) -> float:
    """Seconds of a step."""
    return _exchanged(costs, network, model, steps, shards, held=False, period=1)


def allreduce(costs: Costs, network: Network, model: Model, steps: int, shards: int) -> float:
    """Seconds of a step."""
    return _exchanged(costs, network, model, steps, shards, held=True, period=1)


def local(costs: Costs, network: Network, model: Model, steps: int, shards: int) -> float:
    """Seconds of a step with 16 from one average to the next."""
    return _exchanged(costs, network, model, steps, shards, held=True, period=16)


def asynchronous(costs: Costs, network: Network, model: Model, steps: int, shards: int) -> float:
    """Seconds of a step, whose ranks wait for no other."""
    hosts = Hosts(costs, network, model, shards)
    work = costs.update * model.elements / shards

    def rank(host: int) -> Process:
        for _ in range(steps):
            yield hosts.core(host, model.compute)
            answers = []
            for shard in range(shards):
                if shard == host:
                    yield hosts.core(host, work)
                    continue
                yield hosts.handled(host, hosts.part)
                answers.append(Event(hosts.clock))
                hosts.clock.start(served(host, shard, answers[-1]))
            yield from answers

    def served(host: int, shard: int, answer: Event) -> Process:
        yield from hosts.carried(host, shard, hosts.part)
        yield hosts.core(shard, work)
        yield hosts.handled(shard, hosts.part)
        yield from hosts.carried(shard, host, hosts.part)
        answer.count()

    for host in range(hosts.n):
        hosts.clock.start(rank(host))
    return hosts.seconds(steps)


def ring(costs: Costs, network: Network, model: Model, steps: int, shards: int) -> float:
    """Return the seconds of a step of an all-reduce in which each message goes to the right."""
    hosts, n = Hosts(costs, network, model, 1), network.hosts
    nbytes, elements, last = model.nbytes / n, model.elements / n, 2 * (n - 1)

    def sent(host: int, event: Event) -> Process:
        yield from hosts.carried(host, (host + 1) % n, nbytes)
        event.count()

    came = [[Event(hosts.clock) for _ in range(steps * last)] for _ in range(n)]

    def rank(host: int) -> Process:
        for number in range(steps * last):
            if number % last == 0:
                yield hosts.core(host, model.compute)
            yield hosts.handled(host, nbytes)
            hosts.clock.start(sent(host, came[(host + 1) % n][number]))
            yield came[host][number]
            yield hosts.core(host, costs.add * elements)
            if (number + 1) % last == 0:
                yield hosts.core(host, costs.update * model.elements)

    for host in range(n):
        hosts.clock.start(rank(host))
    return hosts.seconds(steps)


def racks(costs: Costs, network: Network, model: Model, steps: int, shards: int) -> float:
    """Seconds of a step in sync where hosts of a rack sum first, and one of them sends."""
    n, hosts = network.hosts, Hosts(costs, network, model, 1)
    per_rack = max(1, round(n**0.5))
    leaders = range(0, n, per_rack)
    hosts.shards = fastest_shards(len(leaders), model.nbytes)
    turns = []
    for _ in range(steps):
        arrived = [Event(hosts.clock, min(per_rack, n - leader)) for leader in leaders]
        told = [Event(hosts.clock) for _ in range(n)]
        turns.append((arrived, Exchange(hosts, leaders, True), told))

    def carried(start: int, stop: int, event: Event) -> Process:
        yield from hosts.carried(start, stop, model.nbytes)
        event.count()

    def rank(host: int) -> Process:
        rack, place = divmod(host, per_rack)
        leader = leaders[rack]
        for arrived, exchange, told in turns:
            yield hosts.core(host, model.compute)
            if place:
                yield hosts.handled(host, model.nbytes)
                hosts.clock.start(carried(host, leader, arrived[rack]))
                yield told[host]
                continue
            arrived[rack].count()
            yield arrived[rack]
            others = range(host + 1, min(n, host + per_rack))
            yield hosts.core(host, costs.add * model.elements * (1 + len(others)))
            yield from exchange.member(rack)
            for other in others:
                yield hosts.handled(host, model.nbytes)
                hosts.clock.start(carried(host, other, told[other]))

    for host in range(n):
        hosts.clock.start(rank(host))
    return hosts.seconds(steps)


#: What a step of dps is, by mode.
MODES = {"sync": sync, "allreduce": allreduce, "async": asynchronous}
#: Parameters of the models that are measured and simulated.
SIZES = (250, 25_000, 250_000, 1_000_000, 4_000_000)

Found = dict[tuple[int, int, str], tuple[float, int]]


def measured(sizes: Sequence[int], counts: Sequence[int], chosen: Any) -> tuple[Found, Any]:
    """Return seconds and shards of steps that only exchange, by hosts, parameters and mode.

    Also returns, by hosts, the cores that their idle processes leave free.
    """
    found: Found = {}
    cores = {}
    for n in counts:
        with ExitStack() as stack:
            client = Place(stack).cluster(n).client
            busy = psutil.cpu_percent(chosen.idle) / 100 * psutil.cpu_count()
            cores[n] = max(0.05, usable_cores() - busy)  # other programs may take all of them
            for size in sizes:
                fitted = exchanging(client, n, size, chosen.steps)
                for mode in MODES:
                    models = [fitted(mode, "auto") for _ in range(chosen.repeat + 1)][1:]
                    seconds = statistics.median(1 / speed(model) for model in models)
                    found[n, size, mode] = seconds, len(models[0].plan_.shards)
            print(f"{n} hosts: {cores[n]:.2f} cores are left", file=sys.stderr, flush=True)
    return found, cores


def simulated(
    costs: Costs,
    alone: Mapping[int, float],
    cores: float,
    n: int,
    size: int,
    mode: str,
    shards: int,
) -> float:
    """Seconds of a step on hosts that share the cores of one machine."""
    network = Network(n, cores, shared=True, bandwidth=0, latency=0)
    compute = max(0.0, alone[size] - costs.update * size)
    return MODES[mode](costs, network, Model(size, compute), 6, shards)


def costs_of(found: Found, alone: Mapping[int, float], cores: float) -> Costs:
    """The costs that explain what was found on two hosts."""
    few = {key: value for key, value in found.items() if key[0] == 2}

    def wrong(logs: Any) -> list[float]:
        costs = Costs(*np.exp(logs))
        return [
            np.log(simulated(costs, alone, cores, *key, shards) / seconds)
            for key, (seconds, shards) in few.items()
        ]

    start = np.log([1e-5, 3e-10, 2e-10, 5e-10])
    return Costs(*np.exp(least_squares(wrong, start, diff_step=1e-2).x).tolist())


#: Models for many hosts: steps of 1,024 rows of 100 features, a network, and a table.
MODELS = {
    "100 features": Model(100, 5e-5),
    "10 million parameters": Model(10_000_000, 6e-2),
    "a table, 20,000 rows of 16 a batch": Model(16_000_000, 5e-3, keys=20_000, width=16),
}
WAYS = {
    "sync": sync, "sync, racks": racks, "allreduce, ring": ring, "allreduce, period=16": local,
    "async": asynchronous,
}  # fmt: skip


def many(costs: Costs, counts: Sequence[int]) -> None:
    """Print steps of many hosts with cores and cables of their own."""
    for name, model in MODELS.items():
        rows = []
        for way, step in WAYS.items():
            if model.keys and step in (ring, local):
                continue  # of whole vectors
            cells = []
            for n in counts:
                if step is ring and n > 100:
                    cells.append("")
                    continue
                seconds = step(costs, Network(n), model, 1, fastest_shards(n, model.nbytes))
                cells.append(f"{1e3 * seconds:.3g} ({n * model.compute / seconds:.3g})")
            rows.append((way, *cells))
        print(f"{name}: a host computes {1e3 * model.compute:g} ms a step\n")
        table(("ms a step (speed-up)", *(f"{n:,} hosts" for n in counts)), rows)


def main() -> None:
    chosen = options(__doc__, repeat=3, steps=400, idle=5)
    sizes, counts, most = SIZES, (2, 4, 8), (10, 100, 1000)
    if chosen.quick:
        chosen.steps, chosen.idle, sizes, counts, most = 8, 1, (250, 25_000), (2,), (10, 20)
    if reason := why_not():
        print(f"{reason}: left out\n")
        return
    single, _ = measured(sizes, (1,), chosen)
    alone = {size: seconds for (_, size, mode), (seconds, _) in single.items() if mode == "sync"}
    found, cores = measured(sizes, counts, chosen)
    costs = costs_of(found, alone, cores[2])
    print("found on two hosts\n")
    table(
        ("", "microseconds"),
        ((f.name, f"{1e6 * getattr(costs, f.name):.3g}") for f in fields(costs)),
    )
    ratios = {
        key: simulated(costs, alone, cores[key[0]], *key, shards) / seconds
        for key, (seconds, shards) in found.items()
    }
    print("steps that only exchange: ms measured (simulated)\n")
    table(
        ("hosts, mode", *(f"{size:,}" for size in sizes)),
        (
            (f"{n}, {mode}", *(
                f"{1e3 * found[n, size, mode][0]:.3g} "
                f"({1e3 * found[n, size, mode][0] * ratios[n, size, mode]:.3g})"
                for size in sizes
            ))
            for n in counts for mode in MODES
        ),
    )  # fmt: skip
    many(costs, most)
    bars(
        *(
            (f"simulation over measurement: {n} hosts, median of sizes and modes",
             float(np.median([ratio for key, ratio in ratios.items() if key[0] == n])), *bar)
            for n in counts for bar in ((">=", 0.75), ("<=", 1.25))
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
