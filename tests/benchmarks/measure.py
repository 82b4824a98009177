"""The common part of the benchmarks: a cluster, turns, a clock, memory and tables.

It must not know what is measured. Memory is the sum of PSS over processes, since RSS counts
shared pages once for every process; it is read on Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import math
import os
import signal
import statistics
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import dask
import numpy as np
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

from dps.modes import MODES as ALL_MODES

MB = 1e6
#: The modes that are for models without a table, too, by name.
MODES = {name: mode for name, mode in ALL_MODES.items() if not mode.needs_table}
#: Seconds of a run that make a contender slow, and the largest number of runs of a slow one.
SLOW, SLOW_REPEAT = 4.0, 3
#: What Dask's processes do whatever is computed. Workers sample stacks a hundred times a second,
#: for a page of the dashboard: left out. All look after their event loops fifty times: here twice.
SLOW_TIMERS = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
}


def options(doc: str, repeat: int, **more: Any) -> argparse.Namespace:
    """The command line: how often, whether quick, and what a benchmark adds.

    That is numbers; where the default is False, flags; and where it is names, some of these.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=repeat, help="runs to take the median of")
    parser.add_argument("--quick", action="store_true", help="once, on little data: a test")
    for name, default in more.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(option, nargs="+", choices=default, default=default)
        else:
            parser.add_argument(option, type=int, default=default)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.repeat = 1
        # Forked from a process that has imported Dask and dps, workers start much sooner.
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
        get_mp_context().set_forkserver_preload(
            ["distributed.nanny", "dps.cluster.dask.fit", "dps.training.replica.replica"]
        )
    return chosen


@contextmanager
def cluster(n_workers: int = 2, config: Mapping[str, Any] | None = None) -> Iterator[Client]:
    """Yield a client of `n_workers` processes with one thread each; peers' warnings are hidden."""
    with (
        dask.config.set(config or {}),  # nannies hand it on
        LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=":0") as workers,
        Client(workers) as client,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield client


def processes(client: Client | None = None) -> list[int]:
    """Return the ids of this process, which has the scheduler, and of a client's workers."""
    return [os.getpid(), *(client.run(os.getpid).values() if client is not None else ())]


def give_back() -> None:
    """Have this process return what it freed, so that no one lives on what another left."""
    gc.collect()
    with suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def memory(pids: Iterable[int]) -> float:
    """Sum of PSS in bytes; NaN where the system does not tell."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as lines:
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:
            return math.nan
    return 1024.0 * total


class Watch:
    """Looks at something now and then while a block runs."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def look(self) -> None:
        """Look once."""
        raise NotImplementedError

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            self.look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Peak(Watch):
    """The largest memory of processes while a block runs, in bytes, and that before it."""

    def __init__(self, pids: Sequence[int], every: float = 0.005) -> None:
        super().__init__(every)
        self.pids = pids
        self.before = self.peak = memory(pids)

    def look(self) -> None:
        self.peak = max(self.peak, memory(self.pids))

    @property
    def added(self) -> float:
        """The peak memory of the block beyond that before it."""
        return self.peak - self.before


class TooSlow(Exception):
    """A contender did not end within its limit."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise TooSlow in the block after some seconds; in the main thread only."""

    def stop(*_: object) -> None:
        raise TooSlow(f"more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """The seconds of a call, and what it returned."""
    began = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - began, result


Medians = dict[str, dict[str, float]]


def take_turns(
    contenders: dict[str, Callable[[int], Any]],
    repeat: int,
    judge: Callable[[Any], dict[str, float]],
    client: Client | None = None,
) -> Medians:
    """Run each contender once a round; medians of its seconds and of what `judge` says.

    A contender gets the number of the round and returns a fitted model. The round before the
    first is a warm-up, in which the memory that each one adds is watched ("added") and nothing
    is timed: looking at memory costs time. One that is slow there is run `SLOW_REPEAT` times.
    """
    pids = processes(client)
    values: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in contenders}
    turns = dict.fromkeys(contenders, repeat)
    for name, contender in contenders.items():
        give_back()
        if client is not None:
            client.run(give_back)
        with Peak(pids) as watch:
            seconds, _ = timed(contender, 0)
        values[name]["added"].append(watch.added)
        if seconds > SLOW:
            turns[name] = min(repeat, SLOW_REPEAT)
        print(f"{name}: {seconds:.1f} s to warm up", file=sys.stderr, flush=True)
    for turn in range(repeat):
        models = {}
        for name, contender in contenders.items():
            if turn < turns[name]:
                seconds, models[name] = timed(contender, turn)
                values[name]["seconds"].append(seconds)
        # Not in between: threads of BLAS spin for a while after a product.
        for name, model in models.items():
            for key, value in judge(model).items():
                values[name][key].append(value)
    return {
        name: {key: statistics.median(column) for key, column in columns.items()}
        for name, columns in values.items()
    }


def read_blocks(dask_worker: Any, passes: int = 5) -> tuple[int, float]:
    """Bytes of the matrices on a worker, and the median seconds that reading them takes."""
    blocks = [block for block in dict(dask_worker.data).values() if np.ndim(block) == 2]
    arrays = []
    for block in blocks:
        arrays += [block.data, block.indices] if hasattr(block, "indices") else [block.ravel()]
    seconds = []
    for _ in range(passes):
        began = time.perf_counter()
        for array in arrays:
            # As 64-bit integers: summing these is the fastest that NumPy reads memory.
            array[: array.size & ~7].view(np.int64).sum()
        seconds.append(time.perf_counter() - began)
    return sum(array.nbytes for array in arrays), statistics.median(seconds)


def read_speed(client: Client, workers: Sequence[str] | None = None) -> float:
    """Bytes a second at which these workers, or all, together read the matrices they hold."""
    read = client.run(read_blocks, workers=workers).values()
    return sum(size for size, _ in read) / max(seconds for _, seconds in read)


def installed(package: str, module: str) -> bool:
    """True if a peer is installed; prints a note if it is not."""
    found = importlib.util.find_spec(module) is not None
    if not found:
        print(f"{package}: not installed, left out\n")
    return found


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print Markdown; the first column is a name."""
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def roofline(data: int, passes: dict[str, float], speed: float) -> dict[str, float]:
    """Print the speed of passes over `data` bytes; return their shares of the reading speed."""
    shares = {name: data / seconds / speed for name, seconds in passes.items()}
    table(
        ("a pass over the data", "ms", "GB/s", f"of the {speed / 1e9:.1f} GB/s of reading it"),
        (
            (name, f"{1e3 * seconds:.1f}", f"{data / seconds / 1e9:.1f}", f"{shares[name]:.0%}")
            for name, seconds in passes.items()
        ),
    )
    return shares


def bars(*asked: tuple[str, float, str, float]) -> None:
    """Print what was reached beside what was asked: (what, reached, ">=" or "<=", bar)."""
    rows = []
    for what, reached, sign, bar in asked:
        met = reached >= bar if sign == ">=" else reached <= bar
        word = "yes" if met else "not measured" if math.isnan(reached) else "no"
        rows.append((what, f"{reached:.4g}", f"{sign} {bar:g}", word))
    table(("bar", "reached", "asked", "met"), rows)


def megabytes(size: float) -> str:
    return "-" if math.isnan(size) else f"{size / MB:.0f}"
