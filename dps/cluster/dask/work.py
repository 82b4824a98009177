"""Tasks of one fit, and the workers that it cannot do without."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask
from dask._expr import LLGExpr
from dask._task_spec import Task, parse_input
from dask.utils import parse_bytes
from distributed import Client, Future

from dps.cluster.base import grace
from dps.cluster.dask.calls import ask, await_futures, fetch, ids, living, present, staying_with
from dps.cluster.dask.scheduler.silence import silent_among
from dps.cluster.dask.scheduler.standing import Pins, pin_again, standing, unpin
from dps.cluster.dask.spans import FitSpan
from dps.data.collections.partitions import Counted, Partition
from dps.data.collections.sealed import check_pickles, identity, sealed
from dps.errors import ClusterError, WorkerLostError

_log = logging.getLogger("dps")

#: Seconds within which a worker answers that is well.
_PROMPT_SECONDS = 0.2
_TICK_SECONDS = 0.02
#: Seconds after which tasks are set free again from workers that do not answer.
_UNPIN_EVERY_SECONDS = 1.0
#: Bytes that are sent with one graph, at the least.
_LEAST_SENT = 1 << 14


@dataclass(frozen=True)
class Call:
    """A task to start: ``function(*args)``, with Futures in `args` and in lists there.

    Bind objects of dps to the function, as by `partial`: then the scheduler does not need dps.
    """

    key: str
    worker: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()


class FitWork:
    """Submits tasks of a fit, waits for them, and looks whether workers are there.

    fit: id of the fit.
    timeout: seconds without progress after which waiting is an error.
    needed: workers without which the fit cannot go on as it is.
    silent: workers that Dask takes for living, and that do not answer; they count as gone.
    reborn: addresses at which there is another worker than the one that this fit has given
        something. They count as gone until that has been made again, see `PlacedData.restore`.
    """

    def __init__(self, client: Client, fit: str, timeout: float) -> None:
        self.client = client
        self.fit = fit
        self.timeout = timeout
        self.needed: set[str] = set()
        self.silent: set[str] = set()
        self.reborn: set[str] = set()
        self._ids: dict[str, str] = {}
        self._first: set[tuple[str, str]] = set()  # workers and their ids when the fit began
        self.loading: Counted | None = None  # reports partitions that are done
        self._loaded = 0, 0
        self.span = FitSpan()
        self._names = 0
        self._pins: Pins = {}  # of tasks, as they were before this fit changed them

    def name(self) -> str:
        """A unique part of the keys of tasks: the fit, and a number."""
        self._names += 1
        return f"{self.fit}-{self._names}"

    def start(self, calls: Iterable[Call], *, actors: bool = False) -> list[Future]:
        """Submit tasks in one graph, each strictly on its worker; `actors`: as Actors."""
        calls = list(calls)
        functions = {id(call.function): sealed(call.function) for call in calls}
        graph = {
            call.key: Task(call.key, functions[id(call.function)], *map(parse_input, call.args))
            for call in calls
        }
        workers = {call.key: [call.worker] for call in calls}
        tasks = LLGExpr(graph, _determ_token=uuid.uuid4().hex)  # which needs no hash of them
        # Dask calls a function that annotates a graph with each key.
        with self.span(), dask.annotate(workers=workers.__getitem__, allow_other_workers=False):
            try:
                return list(self.client.get(tasks, list(graph), sync=False, actors=actors))
            except TypeError:  # in which Dask shows the whole graph
                for function in functions.values():
                    check_pickles(function)
                raise

    def sent(self, value: Any, worker: str) -> list[Any]:
        """The pickle of a value in parts, for `tasks.unpacked` to join.

        One goes along with the graph; several are Futures, each sent by itself to that worker, so
        that no graph is larger than Dask wants it.
        """
        function = sealed(identity, value)
        try:
            packed = function.contents
        except TypeError:
            check_pickles(function)
            raise
        threshold = dask.config.get("distributed.admin.large-graph-warning-threshold")
        most = max(_LEAST_SENT, int(parse_bytes(threshold)) // 2)
        parts = [packed[start : start + most] for start in range(0, len(packed), most)]
        if len(parts) == 1:
            return parts
        name = self.name()
        return [
            self.start([Call(f"dps-part-{name}-{number}", worker, partial(identity, part))])[0]
            for number, part in enumerate(parts)
        ]

    def wait(
        self, futures: Sequence[Future], of: Mapping[Future, Collection[int]] | None = None
    ) -> None:
        """Wait for pinned tasks; `of` gives the partitions of each, for reports of progress."""
        keys = [future.key for future in futures]

        free = partial(self.unpin, keys)

        def parts_of(some: Iterable[Future]) -> set[int]:
            return {part for future in some for part in of[future]} if of else set()

        def check() -> None:
            self.check()
            if self.silent:  # they are still given what these tasks need
                free()

        def tick(left: Sequence[Future]) -> None:
            check()
            count(left)
            if self.loading is not None and self._loaded[1]:
                self.loading(*self._loaded)

        def count(left: Sequence[Future]) -> None:
            total = len(parts_of(of or ()))
            self._loaded = total - len(parts_of(left)), total

        with self.explaining():  # what these tasks need may wait for a worker that is gone
            await_futures(self.client, futures, self.timeout, tick, free)
        count([])

    def results(self, futures: Sequence[Future]) -> list[Any]:
        """Results of tasks that have ended."""
        with self.explaining():
            return fetch(self.client, futures, self.timeout, self.check)

    def restored(self, given: Mapping[int, Partition]) -> set[int]:
        """Wait until Dask has the Futures of some partitions again; those that it will never have.

        It computes them again if it knows how, which is not so for scattered data.
        """
        keys = {
            number: [value.key for value in vars(part).values() if isinstance(value, Future)]
            for number, part in given.items()
        }
        wanted = [key for some in keys.values() for key in some]
        since, before, freed = time.monotonic(), -1, -math.inf
        while wanted:
            if time.monotonic() - freed > _UNPIN_EVERY_SECONDS and (self.silent or freed < 0):
                self.unpin(wanted)
                freed = time.monotonic()
            found = ask(
                self.client, "_run_on_scheduler", self.timeout,
                function=standing(), keys=wanted, silent=self.silent,
            )  # fmt: skip
            coming = sum(state == "coming" for state in found.values())
            if not coming:
                return {number for number, some in keys.items() if "gone" in map(found.get, some)}
            self.check()
            if coming != before:
                since, before = time.monotonic(), coming
            if time.monotonic() - since > self.timeout:
                raise ClusterError(
                    f"Dask has not computed {coming} partitions again that a worker had for "
                    f"{self.timeout:g} s: raise dps.timeout of dask.config if that may take longer"
                )
            time.sleep(_TICK_SECONDS)
        return set()

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Replace an error by that of a worker that does not answer, if there is one."""
        try:
            yield
        except WorkerLostError:
            raise
        except ClusterError as error:
            self.raise_if_unresponsive(error.worker, self.needed, self.check)
            raise

    def unpin(self, keys: Sequence[Any]) -> None:
        """Let those that stay run what these tasks need, see `standing.unpin`."""
        self._pins = unpin(self.client, keys, self.silent, self.timeout) | self._pins

    def pin_again(self) -> None:
        """Give tasks back the pins that they had before this fit."""
        if self._pins:
            pin_again(self.client, self._pins, grace())

    def living(self, timeout: float | None = None) -> dict[str, int]:
        """Return the living workers and their threads."""
        return self._answering(living(self.client, timeout or self.timeout))

    def staying(self) -> dict[str, int]:
        """Those that have not begun to leave, unless all have."""
        return self.staying_with(())[0]

    def staying_with(self, keys: Sequence[Any]) -> tuple[dict[str, int], dict[Any, list[str]]]:
        """The same, and the workers that have the results of some tasks."""
        workers, held = staying_with(self.client, keys, self.timeout)
        return self._answering(workers), held

    def present(self) -> dict[str, int]:
        """Those that may take part, see `calls.present`; one that does not answer is left out.

        Also those that have been started again at an address that this fit knows.
        """
        while True:
            try:
                found = present(self.client, self.fit, self.timeout, self.silent)
            except ClusterError as error:
                silent = silent_among(self.client, error.worker, (), self.timeout)
                if not silent:
                    raise
                _log.warning("%s; it is left out", error)
                self.silent |= silent
                continue
            answering = {worker: n for worker, n in found.items() if worker not in self.silent}
            if not answering:
                raise ClusterError("no worker of the cluster answers", worker=min(found))
            now = ids(self.client)
            self._first = self._first or set(now.items())
            for worker in answering.keys() & now.keys():
                if self._ids.setdefault(worker, now[worker]) != now[worker]:
                    self._ids[worker] = now[worker]
                    self.reborn.add(worker)
            return answering

    def has_new(self) -> bool:
        """True if workers have joined since the fit began."""
        return not ids(self.client).items() <= self._first

    def _answering(self, workers: Mapping[str, int]) -> dict[str, int]:
        """The workers that answer, and that are the ones this fit knows."""
        now = ids(self.client)  # another thread may have asked since: it need not have all of them
        return {
            worker: n
            for worker, n in workers.items()
            if worker not in self.silent
            and worker not in self.reborn
            and (worker not in now or self._ids.setdefault(worker, now[worker]) == now[worker])
        }

    def raise_if_unresponsive(
        self, worker: str | None, others: Collection[str], check: Callable[[], None]
    ) -> None:
        """Raise if a worker that a peer has lost is gone, or does not answer.

        Those that do not answer count as gone from now on.

        worker: None: any.
        others: workers that this one may have lost its connection to.
        check: raises if the scheduler knows that a worker is gone.
        """
        check()
        silent = silent_among(self.client, worker, others, self.timeout)
        check()
        if silent:
            self.silent |= silent
            raise WorkerLostError(
                "a worker does not answer", worker=worker if worker in silent else min(silent)
            )

    def ask_silent(self, others: Collection[str] = ()) -> None:
        """Ask silent workers and others again; only those that answer at once are not silent.

        The fit must not depend on the others: a healthy worker may answer late.
        """
        if asked := {*self.silent, *others}:
            self.silent = silent_among(self.client, None, asked, self.timeout, (_PROMPT_SECONDS,))

    def check(self) -> None:
        """Raise if a worker is gone, or leaves, that this fit has given something to do.

        One that leaves takes no tasks, and waits until others have what it holds: what this fit
        keeps there no other may be able to read.
        """
        alive = self.staying()
        for worker in sorted(self.needed):
            if worker not in alive:
                raise WorkerLostError(
                    "a worker died or left the cluster before training began", worker=worker
                )
