"""The tasks of a fit, and the workers that it depends on."""

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
from dps.cluster.dask.scheduler.progress import StallClock, look_for_progress
from dps.cluster.dask.scheduler.silence import silent_among
from dps.cluster.dask.scheduler.standing import Pins, pin_again, standing, unpin
from dps.cluster.dask.spans import FitSpan
from dps.data.collections.partitions import Counted, Partition
from dps.data.collections.sealed import check_pickles, identity, sealed
from dps.errors import ClusterError, WorkerLostError

_log = logging.getLogger("dps")

#: Seconds in which a healthy worker answers.
_PROMPT_SECONDS = 0.2
_TICK_SECONDS = 0.02
#: Seconds between two calls that free tasks from silent workers.
_UNPIN_EVERY_SECONDS = 1.0
#: Least number of bytes that one graph may carry.
_LEAST_SENT = 1 << 14


@dataclass(frozen=True)
class Call:
    """A task to start: ``function(*args)``, with Futures in `args` and in lists in it.

    Bind objects of dps to the function, for example with `partial`, so that the scheduler does not
    need dps.
    """

    key: str
    worker: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()


class FitWork:
    """Submits tasks of a fit, waits for them, and checks that its workers are there.

    fit: id of the fit.
    timeout: seconds without progress that raise an error.
    needed: workers that the fit cannot continue without.
    silent: workers that Dask considers alive but that do not answer; they count as lost.
    reborn: addresses of workers that were restarted, which count as lost until the fit's data has
        been made again, see `PlacedData.restore`.
    """

    def __init__(self, client: Client, fit: str, timeout: float) -> None:
        self.client = client
        self.fit = fit
        self.timeout = timeout
        self.needed: set[str] = set()
        self.silent: set[str] = set()
        self.reborn: set[str] = set()
        self._ids: dict[str, str] = {}
        self._first: set[tuple[str, str]] = set()  # workers with their ids when the fit began
        self.loading: Counted | None = None  # reports the partitions that are done
        self._loaded = 0, 0
        self.span = FitSpan()
        self._names = 0
        self._pins: Pins = {}  # pins of tasks before this fit changed them

    def name(self) -> str:
        """Return a unique part for the keys of tasks: the id of the fit and a number."""
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
        # A token, so that Dask does not hash the tasks.
        tasks = LLGExpr(graph, _determ_token=uuid.uuid4().hex)
        # Dask calls a function in an annotation with each key.
        with self.span(), dask.annotate(workers=workers.__getitem__, allow_other_workers=False):
            try:
                return list(self.client.get(tasks, list(graph), sync=False, actors=actors))
            except TypeError:  # Dask's message shows the whole graph
                for function in functions.values():
                    check_pickles(function)
                raise

    def sent(self, value: Any, worker: str) -> list[Any]:
        """Return the pickle of a value in parts, which `tasks.unpacked` joins.

        A single part goes with the graph. Several parts are Futures that are sent to the worker one
        by one, so that no graph exceeds Dask's threshold.
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
            if self.silent:  # Dask still gives them what these tasks need
                free()

        def tick(left: Sequence[Future]) -> None:
            check()
            count(left)
            if self.loading is not None and self._loaded[1]:
                self.loading(*self._loaded)

        def count(left: Sequence[Future]) -> None:
            total = len(parts_of(of or ()))
            self._loaded = total - len(parts_of(left)), total

        with self.explaining():  # the input of these tasks may be on a lost worker
            await_futures(self.client, futures, self.timeout, tick, free)
        count([])

    def results(self, futures: Sequence[Future]) -> list[Any]:
        """Return results of tasks that have ended."""
        with self.explaining():
            return fetch(self.client, futures, self.timeout, self.check)

    def restored(self, given: Mapping[int, Partition]) -> set[int]:
        """Wait until Dask has the Futures of some partitions again; return those that are lost.

        Dask computes them again if it has their tasks, which scattered data lacks. As in
        `await_futures`, they may take longer than the timeout while they make progress.
        """
        keys = {
            number: [value.key for value in vars(part).values() if isinstance(value, Future)]
            for number, part in given.items()
        }
        wanted = [key for some in keys.values() for key in some]
        look, clock = look_for_progress(self.timeout), StallClock(self.timeout)
        before, freed = len(wanted), -math.inf
        while wanted:
            if time.monotonic() - freed > _UNPIN_EVERY_SECONDS and (self.silent or freed < 0):
                self.unpin(wanted)
                freed = time.monotonic()
            found = ask(
                self.client, "_run_on_scheduler", self.timeout,
                function=standing(), keys=wanted, silent=self.silent,
            )  # fmt: skip
            coming = [key for key, state in found.items() if state == "coming"]
            if not coming:
                return {number for number, some in keys.items() if "gone" in map(found.get, some)}
            self.check()
            progress = ask(
                self.client, "_run_on_scheduler", self.timeout, function=look, keys=coming
            )
            clock.see(progress, len(coming), len(coming) < before)
            before = len(coming)
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
        """Let the remaining workers run what these tasks need, see `standing.unpin`."""
        self._pins = unpin(self.client, keys, self.silent, self.timeout) | self._pins

    def pin_again(self) -> None:
        """Restore the pins that tasks had before this fit."""
        if self._pins:
            pin_again(self.client, self._pins, grace())

    def living(self, timeout: float | None = None) -> dict[str, int]:
        """Return the living workers and their threads."""
        return self._answering(living(self.client, timeout or self.timeout))

    def staying(self) -> dict[str, int]:
        """Return the workers that are not leaving, unless all are."""
        return self.staying_with(())[0]

    def staying_with(self, keys: Sequence[Any]) -> tuple[dict[str, int], dict[Any, list[str]]]:
        """Return these, and for some tasks the workers that have their results."""
        workers, held = staying_with(self.client, keys, self.timeout)
        return self._answering(workers), held

    def present(self) -> dict[str, int]:
        """Return the workers that may take part, see `calls.present`, without silent ones.

        This includes workers that were restarted at an address that this fit knows.
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
        """Return the workers that answer and have the ids that this fit knows."""
        # Another thread may have updated the ids, perhaps without all of them.
        now = ids(self.client)
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
        """Raise if a worker that a peer could not reach is lost or does not answer.

        Workers that do not answer count as lost from now on.

        worker: None: any.
        others: workers that it may have lost its connection to.
        check: raises if the scheduler knows that a worker is lost.
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
        """Ask silent workers and others again; those that answer at once are no longer silent.

        The fit must not depend on the others: a healthy worker may answer late.
        """
        if asked := {*self.silent, *others}:
            self.silent = silent_among(self.client, None, asked, self.timeout, (_PROMPT_SECONDS,))

    def check(self) -> None:
        """Raise if a worker that has tasks of this fit is lost or leaves.

        A leaving worker takes no tasks and waits until others hold its data. Data of this fit may
        be unreadable for others.
        """
        alive = self.staying()
        for worker in sorted(self.needed):
            if worker not in alive:
                raise WorkerLostError(
                    "a worker died or left the cluster before training began", worker=worker
                )
