"""Several hosts: steps, shards, bytes on the wire and fits, beside one host, gloo and plain TCP.

    python tests/benchmarks/hosts.py [--only PART ...] [--repeat K] [sizes, see --help] [--quick]

Hosts are network namespaces of this machine (`namespaces.py`, as root on Linux), workers have one
thread each. What is compared takes turns, and medians are printed; the host to compare with is a
namespace, too, with as many workers. Steps a second are those of a replica within an epoch, as
`steps.py` counts them; PyTorch's processes and the plain TCP connection are there already when
their clock starts. Parts:

steps: 100 dense features, 1,024 rows a replica and step, by SGD, on 2, 4 and 8 hosts, and on one
host with as many workers; DDP over gloo with as many ranks, and messages of as many bytes there and
back by plain TCP. shards: steps of a model that computes nothing, by its parameters, hosts and
shards; the default beside the best number. large: a row a replica and step of a million features,
so that the exchange is what takes time; gloo's all-reduce of as many float32. layers: a network of
ten million parameters beside DDP, also with cables of 1 Gbit/s (`tc`). wire: bytes of a step
with two workers a host, beside one gradient and one answer a host; what a fit takes besides steps
is left out by taking a short one from a long one. quality: networks at defaults on the two data
sets of `network.py`, by what crosses the wire. sparse: steps by keys on rows of the flights.
fits: whole calls of `fit` at defaults, by L-BFGS, on dense rows and on the flights. tls: as steps.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, wait
from distributed.security import Security

import network
from dense import FEATURES, make
from dps import AllReduce, LinearClassifier, MLPClassifier, ModelRegressor, Sync
from dps.modes import Mode
from dps.modes.base import WIRES
from flights import DATA, on_cluster, read_flights, split
from measure import MODES, bars, installed, options, table, timed
from namespaces import INTERFACE, ClusterOfHosts, Host, cluster_of_hosts, why_not

BATCH, RATE, RANKS, EPOCHS = 1024, 0.1, 2, 5
#: Rows per replica and step, and rows that are read. The first are so few that steps on the flights
#: go by keys: a batch touches less than an eighth of the columns.
FEW_ROWS, ENOUGH = 24, 20_000
#: Epochs of the fits whose bytes are compared.
SHORT, LONG = 1, 5
FULL_BATCH_MODES = ("sync", "allreduce")
#: Modes whose vectors cross the wire as bfloat16.
NARROW = {
    f"bfloat16, {mode.name}": mode for mode in (Sync(wire="bfloat16"), AllReduce(wire="bfloat16"))
}
LOCAL = AllReduce(period=16)
#: The speed of slow cables between hosts.
CABLE = "1gbit"
#: Numbers of hosts.
HOSTS = (2, 4, 8)
#: Parameters of the models whose shards are compared, and the least number that has a bar. Models
#: with at most `LITTLE_SENT` parameters on all hosts together take all steps.
SIZES = (250, 25_000, 250_000, 1_000_000, 10_000_000)
LARGE, LITTLE_SENT = 1_000_000, 50_000
#: Steps a second over those of DDP, at least, by hosts and workers of each.
BARS = {
    (2, 1): {"sync": 10, "allreduce": 7},
    (4, 1): {"sync": 20, "async": 35, "allreduce": 20},
    (8, 1): {"sync": 9, "async": 35, "allreduce": 9},
}

Found = dict[str, list[float]]


@contextmanager
def members(hosts: list[Host]) -> Iterator[Callable[..., float]]:
    """Processes of `across.py`, one a host named, as a function that times an order."""
    script, pipe = str(Path(__file__).with_name("across.py")), subprocess.PIPE
    processes: list[subprocess.Popen[str]] = []

    def answer() -> str:
        if not (line := processes[0].stdout.readline()):
            raise OSError("the processes beside dps have ended")
        return line

    def order(*words: str | int) -> float:
        for process in processes:
            print(*words, file=process.stdin, flush=True)
        return float(answer())

    place = str(len(hosts)), hosts[0].address, "7000", INTERFACE
    for rank, host in enumerate(hosts):
        command = [sys.executable, "-W", "ignore", script, str(rank), *place]
        processes.append(host.start(command, stdin=pipe, stdout=pipe, text=True))
        if rank == 0:
            answer()  # the others may start
    yield order
    for process in processes:
        process.stdin.close()
        process.wait(30)


class Place:
    """Clusters of hosts, each made when a part first asks for it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._made: dict[Any, ClusterOfHosts] = {}
        self._orders: dict[Any, Callable[..., float]] = {}

    def cluster(self, n_hosts: int, workers: int = 1, tls: bool = False) -> ClusterOfHosts:
        name = n_hosts, workers, tls
        if name not in self._made:
            security = Security.temporary() if tls else None
            made = cluster_of_hosts(n_hosts, workers, security)
            self._made[name] = self._stack.enter_context(made)
        return self._made[name]

    @property
    def apart(self) -> Client:
        """Two hosts with a worker each."""
        return self.cluster(RANKS).client

    @property
    def together(self) -> Client:
        """One host with two workers."""
        return self.cluster(1, RANKS).client

    def order(self, n_hosts: int, workers: int, *words: str | int) -> float:
        """Return the seconds of an order to the processes of `across.py`, `workers` per host."""
        name = n_hosts, workers
        if name not in self._orders:
            hosts = [host for host in self.cluster(*name).hosts for _ in range(workers)]
            self._orders[name] = self._stack.enter_context(members(hosts))
        return self._orders[name](*words)


def stochastic(
    client: Client, data: Any, mode: str | Mode, rows: int, epochs: int = EPOCHS, **more: Any
) -> LinearClassifier:
    """Fit by steps of `rows` rows per replica."""
    ranks = len(client.nthreads())
    model = LinearClassifier(
        mode=mode, client=client, batch_size=rows if mode == "async" else ranks * rows,
        max_iter=epochs, tol=None,
        random_state=0, n_replicas=ranks, **({"optimizer": "sgd", "learning_rate": RATE} | more),
    )  # fmt: skip
    with dask.config.set({"dps.rebalance": False}):
        return model.fit(*data)


def steps_of_an_epoch(model: LinearClassifier) -> int:
    return max(rank.steps for rank in model.plan_.ranks)


def speed(model: LinearClassifier) -> float:
    """Steps a second of a replica, within the median epoch."""
    epoch = statistics.median(record["seconds"] for record in model.history_)
    return steps_of_an_epoch(model) / epoch


def take_turns(
    contenders: Mapping[str, Callable[[], float]], chosen: argparse.Namespace
) -> dict[str, float]:
    """Medians of what contenders return, which take turns; the first turn is to warm up."""
    found: Found = defaultdict(list)
    for turn in range(1 if chosen.quick else 0, chosen.repeat + 1):
        for name, contender in contenders.items():
            value = contender()
            if turn > 0:
                found[name].append(value)
        print(f"turn {turn} of {chosen.repeat}", file=sys.stderr, flush=True)
    return {name: statistics.median(values) for name, values in found.items()}


def put(make_data: Callable[..., Any], client: Client, *arguments: Any) -> Any:
    """Data on a cluster; waiting for it uses the current client."""
    with client.as_current():
        return make_data(client, *arguments)


def drawn(client: Client, rows: int, width: int) -> Any:
    """Dense float32 rows and labels, as many on each worker."""
    parts = []
    for number, worker in enumerate(sorted(client.nthreads())):
        random = da.random.default_rng(number)
        n = rows // len(client.nthreads())
        X = random.random(size=(n, width), chunks=(4, width)).astype(np.float32) - np.float32(0.5)
        y = da.from_array(np.arange(n) % 2, chunks=4)
        parts.append(client.persist((X, y), workers=[worker], allow_other_workers=False))
    wait(parts)
    return da.concatenate([X for X, _ in parts]), da.concatenate([y for _, y in parts])


def steps(place: Place, chosen: argparse.Namespace) -> None:
    for n_hosts, workers in (*((n, 1) for n in chosen.hosts), *((1, n) for n in chosen.hosts)):
        with ExitStack() as stack:  # idle workers of others would take part of the cores
            _steps(Place(stack), n_hosts, workers, chosen)


def _steps(place: Place, n_hosts: int, workers: int, chosen: argparse.Namespace) -> None:
    ranks, client = n_hosts * workers, place.cluster(n_hosts, workers).client
    data = put(make, client, ranks * BATCH * chosen.steps)
    message = 4 * (FEATURES + 2)
    contenders = {
        f"dps {mode}": lambda mode=mode: speed(stochastic(client, data, mode, BATCH))
        for mode in MODES
    }
    peer, plain = "PyTorch DDP over gloo", f"{message} bytes there and back by TCP"

    def a_second(*words: str | int) -> float:
        return chosen.steps / place.order(n_hosts, workers, words[0], chosen.steps, *words[1:])

    if installed("PyTorch", "torch"):
        contenders[peer] = lambda: a_second("ddp", FEATURES, BATCH)
    if ranks == RANKS:
        contenders[plain] = lambda: a_second("trips", message)
    medians = take_turns(contenders, chosen)
    peers = medians.get(peer, np.nan)
    where = f"{n_hosts} hosts" if n_hosts > 1 else f"1 host, {workers} workers"
    print(f"{where}, {FEATURES} features, {BATCH:,} rows a replica and step\n")
    table(
        ("", "a second", "times DDP"),
        ((name, f"{value:,.0f}", f"{value / peers:.2f}") for name, value in medians.items()),
    )
    bars(
        *(
            (f"hosts steps: {where}, {mode}, times those of DDP",
             medians[f"dps {mode}"] / peers, ">=", least)
            for mode, least in BARS.get((n_hosts, workers), {}).items()
        )
    )  # fmt: skip


class Nothing:
    """A model with `size` parameters, whose gradient takes no time."""

    def __init__(self, size: int) -> None:
        self.layout = {"w": (size,)}

    def init(self, rng: Any) -> dict[str, float]:
        return {"w": 0.0}

    def raw(self, params: Any, batch: Any) -> Any:
        return params["w"][:1] * batch.X[:, 0]

    def loss_gradient(self, params: Any, batch: Any, out: Any) -> float:
        out["w"][0] += 1e-9
        return 0.0


def shards(place: Place, chosen: argparse.Namespace) -> None:
    ratios: dict[int, list[float]] = defaultdict(list)
    for n_hosts in chosen.hosts:
        with ExitStack() as stack:
            client = Place(stack).cluster(n_hosts).client
            for size in chosen.sizes:
                ratios[size] += _shards(client, n_hosts, size, chosen)
    bars(
        *(
            (f"hosts shards: {size:,} parameters, the default's time over the least, at worst",
             max(ratios[size]), "<=", 1.1)
            for size in chosen.sizes
            if size >= LARGE
        )
    )  # fmt: skip


def exchanging(
    client: Client, n_hosts: int, size: int, steps: int
) -> Callable[[str, int | str], ModelRegressor]:
    """Return a function that fits a model that computes nothing, in a mode and on some shards."""
    times = max(4, min(steps, steps * LITTLE_SENT // (size * n_hosts)))
    data = put(drawn, client, n_hosts * times, 1)

    def fitted(mode: str, n_shards: int | str) -> ModelRegressor:
        model = ModelRegressor(
            Nothing(size), mode=mode, client=client, batch_size=1 if mode == "async" else n_hosts,
            max_iter=4, tol=None, random_state=0, n_replicas=n_hosts, optimizer="sgd",
            learning_rate=RATE,
        )  # fmt: skip
        with dask.config.set({"dps.rebalance": False, "dps.n_shards": n_shards}):
            return model.fit(*data)

    return fitted


def _shards(client: Client, n_hosts: int, size: int, chosen: argparse.Namespace) -> Iterator[float]:
    """Print the steps by shards; for each mode the default's time over the least."""
    fitted = exchanging(client, n_hosts, size, chosen.shard_steps)
    default = len(fitted("sync", "auto").plan_.shards)
    numbers = sorted({default, *(number for number in (1, 2, 4, 8) if number <= n_hosts)})
    medians = take_turns(
        {
            f"{mode} {n}": lambda mode=mode, n=n: 1e3 / speed(fitted(mode, n))
            for mode in MODES
            for n in numbers
        },
        chosen,
    )
    print(f"{n_hosts} hosts, {size:,} parameters, {default} by default\n")
    found = {mode: [medians[f"{mode} {n}"] for n in numbers] for mode in MODES}
    ratios = {mode: medians[f"{mode} {default}"] / min(found[mode]) for mode in MODES}
    table(
        ("ms a step, by shards", *map(str, numbers), "default / least"),
        (
            (mode, *(f"{value:.2f}" for value in found[mode]), f"{ratios[mode]:.2f}")
            for mode in MODES
        ),
    )
    yield from ratios.values()


def large(place: Place, chosen: argparse.Namespace) -> None:
    size, times = chosen.parameters, chosen.large_steps
    data = put(drawn, place.apart, RANKS * times, size)

    def milliseconds(mode: str | Mode) -> float:
        model = stochastic(place.apart, data, mode, 1, epochs=3, learning_rate=0.1 / size)
        return 1e3 / speed(model)

    contenders = {f"dps {mode}": lambda mode=mode: milliseconds(mode) for mode in MODES}
    contenders |= {name: lambda mode=mode: milliseconds(mode) for name, mode in NARROW.items()}
    peer, plain = "gloo, an all-reduce", "as many bytes there and back by TCP"
    if installed("PyTorch", "torch"):
        contenders[peer] = lambda: 1e3 * place.order(RANKS, 1, "all_reduce", times, size) / times
    contenders[plain] = lambda: 1e3 * place.order(RANKS, 1, "trips", times, 4 * size) / times
    medians = take_turns(contenders, chosen)
    peers = medians.get(peer, np.nan)
    print(f"{RANKS} hosts, {size:,} dense features, a row a replica and step\n")
    table(
        ("", "ms a step", "times gloo's", "times TCP's"),
        (
            (name, f"{value:.2f}", f"{value / peers:.2f}", f"{value / medians[plain]:.2f}")
            for name, value in medians.items()
        ),
    )
    bars(("hosts large: a sync step, of gloo's time", medians["dps sync"] / peers, "<=", 1))


def layers(place: Place, chosen: argparse.Namespace) -> None:
    for rate in (CABLE,) if chosen.quick else (None, CABLE):
        with ExitStack() as stack:
            pair = Place(stack)
            hosts = pair.cluster(RANKS).hosts
            try:
                for host in hosts if rate else ():
                    host.slow(rate)
            except OSError as error:
                print(f"{error}: left out\n")
                continue
            _layers(pair, rate or "as fast as this machine copies", chosen)


def _layers(place: Place, cables: str, chosen: argparse.Namespace) -> None:
    client, steps = place.apart, chosen.layer_steps
    rows, units = chosen.layer_rows, (chosen.units,) * 3
    data = put(make, client, RANKS * rows * steps)

    def milliseconds(mode: str | Mode) -> float:
        model = MLPClassifier(
            units, mode=mode, client=client, batch_size=RANKS * rows, max_iter=3, tol=None,
            random_state=0, n_replicas=RANKS, optimizer="sgd", learning_rate=0.01,
            embedding_size=0, average=False, early_stopping=False,
        )  # fmt: skip
        return 1e3 / speed(model.fit(*data))

    modes: dict[str, str | Mode] = {f"dps {mode}": mode for mode in FULL_BATCH_MODES}
    modes |= {**NARROW, LOCAL.described: LOCAL}
    contenders = {name: lambda mode=mode: milliseconds(mode) for name, mode in modes.items()}
    peer = "PyTorch DDP over gloo"
    if installed("PyTorch", "torch"):
        sizes = FEATURES, rows, *units
        contenders[peer] = lambda: 1e3 * place.order(RANKS, 1, "ddp", steps, *sizes) / steps
    medians = take_turns(contenders, chosen)
    print(f"{RANKS} hosts, layers of {units} units, {rows} rows a replica and step, {cables}\n")
    table(
        ("", "ms a step", "DDP's time over it"),
        (
            (name, f"{value:.3g}", f"{medians.get(peer, np.nan) / value:.2f}")
            for name, value in medians.items()
        ),
    )


def wire(place: Place, chosen: argparse.Namespace) -> None:
    cluster, size = place.cluster(RANKS, 2), chosen.wire_parameters
    data = put(drawn, cluster.client, 4 * chosen.wire_steps, size)

    def carried(mode: str | Mode, epochs: int) -> int:
        """Bytes that a host has sent and received, the mean of all."""
        before = [host.sent + host.received for host in cluster.hosts]
        stochastic(cluster.client, data, mode, 1, epochs=epochs, learning_rate=0.1 / size)
        after = [host.sent + host.received for host in cluster.hosts]
        return (sum(after) - sum(before)) / len(before)

    def of_a_step(mode: str | Mode) -> float:
        more = carried(mode, LONG) - carried(mode, SHORT)
        return more / (LONG - SHORT) / chosen.wire_steps

    contenders = {f"dps {mode}": lambda mode=mode: of_a_step(mode) for mode in MODES}
    contenders |= {name: lambda mode=mode: of_a_step(mode) for name, mode in NARROW.items()}
    medians = take_turns(contenders, chosen)
    least = 2 * 4 * size
    print(f"{RANKS} hosts, 2 workers each, {size:,} dense float32 features\n")
    table(
        ("", "kB a host and step", "times one gradient and one answer"),
        ((name, f"{value / 1e3:,.0f}", f"{value / least:.2f}") for name, value in medians.items()),
    )
    bars(
        *(
            (f"hosts wire: {mode}, times one gradient and one answer",
             medians[f"dps {mode}"] / least, "<=", 1.05)
            for mode in FULL_BATCH_MODES
        ),
        *((f"hosts wire: {name}", medians[name] / least, "<=", 0.55) for name in NARROW),
    )  # fmt: skip


def quality(place: Place, chosen: argparse.Namespace) -> None:
    if not DATA.exists():
        print("adult, california-housing: the data is not here, left out\n")
        return
    modes = {
        f"{wire}, {mode.described}": replace(mode, wire=wire)
        for mode in (Sync(), AllReduce(), AllReduce(period=16))
        for wire in WIRES
    }
    if chosen.quick:
        modes = dict([*modes.items()][-1:])
    found = {
        name: network.test_losses(
            range(chosen.seeds), chosen.people or None, mode=mode, client=place.apart
        )
        for name, mode in modes.items()
    }
    print(f"{RANKS} hosts, means of {chosen.seeds} seeds, and their standard deviations\n")
    table(
        ("", *network.LOSSES),
        (
            (name, *(f"{np.mean(of):.4f} ({np.std(of):.4f})" for of in losses))
            for name, losses in found.items()
        ),
    )


def sparse(place: Place, chosen: argparse.Namespace) -> None:
    if not DATA.exists():
        print("flights: the data is not here, left out\n")
        return
    rows = RANKS * FEW_ROWS * chosen.sparse_steps
    X, y = (both[:rows] for both in read_flights(max(rows, ENOUGH)))
    there = {
        name: (client, put(on_cluster, client, X, y))
        for name, client in {"two hosts": place.apart, "one host": place.together}.items()
    }

    def measured(mode: str, where: str) -> float:
        client, data = there[where]
        return speed(stochastic(client, data, mode, FEW_ROWS, optimizer="adagrad"))

    medians = take_turns(
        {
            f"{mode} {where}": lambda mode=mode, where=where: measured(mode, where)
            for mode in MODES
            for where in there
        },
        chosen,
    )
    print(f"flights, {X.shape[1]:,} columns, {FEW_ROWS} rows a replica and step, by keys\n")
    of_two_and_one("steps a second", "dps {}", MODES, medians, "{:,.0f}")


def of_two_and_one(
    what: str, name: str, modes: Any, medians: Mapping[str, float], form: str
) -> None:
    """Print the medians of two hosts, the medians of one, and their ratios."""
    rows = []
    for mode in modes:
        two, one = medians[f"{mode} two hosts"], medians[f"{mode} one host"]
        rows.append((name.format(mode), form.format(two), form.format(one), f"{two / one:.3g}"))
    table((what, "two hosts", "one host", "two / one"), rows)


def fits(place: Place, chosen: argparse.Namespace) -> None:
    clients = {"two hosts": place.apart, "one host": place.together}
    kinds = {f"dense, {chosen.rows:,} x {FEATURES}": lambda client: put(make, client, chosen.rows)}
    if DATA.exists():
        X, y, *_ = split(*read_flights(chosen.flights))
        kinds[f"flights, {len(y):,} x {X.shape[1]:,}"] = lambda client: put(
            on_cluster, client, X, y
        )
    else:
        print("flights: the data is not here, left out\n")

    for kind, made_on in kinds.items():
        there = {where: (client, made_on(client)) for where, client in clients.items()}

        def seconds(mode: str, where: str, there: Mapping[str, Any] = there) -> float:
            client, data = there[where]
            return timed(LinearClassifier(mode=mode, client=client, random_state=0).fit, *data)[0]

        medians = take_turns(
            {
                f"{mode} {where}": lambda mode=mode, where=where, run=seconds: run(mode, where)
                for mode in FULL_BATCH_MODES
                for where in there
            },
            chosen,
        )
        of_two_and_one(f"{kind}: seconds", "dps {}", FULL_BATCH_MODES, medians, "{:.3f}")


def tls(place: Place, chosen: argparse.Namespace) -> None:
    if not installed("cryptography", "cryptography"):
        return
    clients = {"without": place.apart, "with": place.cluster(RANKS, 1, tls=True).client}
    rows = RANKS * BATCH * chosen.steps
    there = {how: (client, put(make, client, rows)) for how, client in clients.items()}
    medians = take_turns(
        {
            f"{mode} {how}": lambda mode=mode, of=of: speed(stochastic(of[0], of[1], mode, BATCH))
            for mode in MODES
            for how, of in there.items()
        },
        chosen,
    )
    print(f"{RANKS} hosts, {FEATURES} features, {BATCH:,} rows a replica and step\n")
    cells = []
    for mode in MODES:
        secure, plain = medians[f"{mode} with"], medians[f"{mode} without"]
        cells.append((f"dps {mode}", f"{secure:,.0f}", f"{plain:,.0f}", f"{secure / plain:.3g}"))
    table(("steps a second", "with TLS", "without", "with / without"), cells)


PARTS = {
    part.__name__: part for part in (steps, shards, large, layers, wire, quality, sparse, fits, tls)
}
LITTLE = {
    "steps": 5, "shard_steps": 8, "hosts": (2,), "sizes": (250,),
    "parameters": 10_000, "large_steps": 4, "wire_parameters": 10_000, "wire_steps": 4,
    "units": 16, "layer_rows": 32, "layer_steps": 4,
    "seeds": 1, "people": 3_000, "sparse_steps": 20, "rows": 20_000, "flights": 20_000,
}  # fmt: skip


def main() -> None:
    chosen = options(
        __doc__, repeat=5, only=tuple(PARTS), steps=200, shard_steps=400,
        parameters=1_000_000, large_steps=32, units=2_200, layer_rows=256, layer_steps=16,
        wire_parameters=100_000, wire_steps=32, seeds=5, people=0,
        sparse_steps=200, rows=1_000_000, flights=3_000_000,
    )  # fmt: skip
    vars(chosen).update(hosts=HOSTS, sizes=SIZES)
    if chosen.quick:
        vars(chosen).update(LITTLE)
    if reason := why_not():
        print(f"{reason}: left out\n")
        return
    with ExitStack() as stack:
        place = Place(stack)
        for name in chosen.only:
            print(f"{name}\n")
            PARTS[name](place, chosen)


if __name__ == "__main__":
    main()
