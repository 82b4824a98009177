"""The partitions of a fit on a Dask cluster: where each is, and how it was made.

Partitions of a lost worker are made again on another one: Dask computes them, or they are sent
again, and then they are changed as before (`PlacedData.restore`). The stage of a partition is the
number of steps that have been applied to it, or -1 if it does not exist. The stage changes together
with the partition's Future, so after a loss at any point the stages say what remains to be done.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

from distributed import Future

from dps.cluster.dask.calls import ask, confines
from dps.cluster.dask.exchange import exchange
from dps.cluster.dask.loading import (
    Slice,
    compute,
    homes_of,
    naming_partitions,
    ours,
    send,
    slices_of,
)
from dps.cluster.dask.scheduler.standing import homes_after
from dps.cluster.dask.tasks import call_on_each, call_unopened, cut_out, sum_of_each, unpacked
from dps.cluster.dask.work import Call, FitWork
from dps.data.collections.partitions import Partition, Piece, is_dask
from dps.data.exchange import RandomSplit
from dps.data.keep.computing import recipes_of_absent, storage_for
from dps.data.keep.keeping import Keeping, attach_recipe, remake_partition, stands_for
from dps.data.keep.streams import is_whole
from dps.errors import ClusterError, WorkerLostError

#: Makes a replacement of X from a partition and its number.
Change = Callable[[Any, int], Any]


#: Workers that may die with a partition before training begins; Dask allows a task as many.
_ATTEMPTS = 3


@dataclass(frozen=True)
class _Step:
    """A step on some partitions; without a change it attaches their recipes."""

    numbers: frozenset[int]
    change: Change | None = None


class PlacedData:
    """Partitions on workers.

    holders: the worker of each partition; validation data comes last.
    n_trained: number of training partitions.
    gone: partitions of lost workers that cannot be made again.
    staying: workers that were staying when partitions were last located.
    """

    def __init__(self, work: FitWork) -> None:
        self._work = work
        self.holders: list[str] = []
        self.gone: set[int] = set()
        self.n_trained = 0
        self.staying: Mapping[str, int] = {}
        self._partitions: list[Partition] = []
        self._given: list[Partition] = []  # as users gave them, for Dask data
        self._slices: list[Slice] = []  # pieces of local data that were sent
        # The number of each partition in the user's data; None for exchanged rows.
        self._origins: list[int | None] = []
        self._prepare: Change | None = None
        self._steps: list[_Step] = []
        self._stages: list[int] = []
        self._attempts: dict[int, int] = {}
        # Futures that this fit has made, and none of the user's.
        self._owned: list[Future] = []
        self._moved: set[str] = set()  # keys of rows that the last generation moved
        self._keeping = Keeping(work.fit, "memory")
        self._weighted = False
        self._streams = False

    def load(
        self,
        partitions: Sequence[Partition],
        prepare: Change | None,
        cache: str | None,
        workers: Sequence[str],
        validation: Sequence[Partition],
    ) -> None:
        """Keep every partition on one of some workers, see `Cluster.load`."""
        work = self._work
        given = ours(work.client, [*partitions, *validation], work.timeout)
        self.n_trained = len(partitions)
        self._weighted = any(part.weight is not None for part in partitions)
        dask = bool(partitions) and is_dask(partitions[0].X)
        if dask:
            self._given, self._prepare = given, prepare
            there = prepare is None and all(isinstance(p.X, Future) for p in given)
            if not there:
                self._keeping = storage_for(work.fit, cache, given, self.n_trained)
                self._streams = self._keeping.cache != "memory"  # assumed until it is known
            self._partitions = list(given)
            self.holders = self._homes(workers)
        else:
            self._slices = slices_of(partitions, workers)
            self.n_trained = len(self._slices)
            self._slices += slices_of(validation, workers)
            self._partitions = [Partition(None, None, None)] * len(self._slices)
            self.holders = [part.worker for part in self._slices]
        numbers = range(len(self.holders))
        self._origins, self._stages = list(numbers), [-1] * len(numbers)
        if self._streams:
            self._steps.append(_Step(frozenset(numbers)))
        coming = [f for part in self._partitions for f in _futures(part) if f.status != "finished"]
        if dask and coming:  # partitions that users have persisted
            self._await_partitions(numbers)
            self.holders = self._homes(workers)
        work.needed = set(self.holders)
        self._bring()

    def _homes(self, workers: Sequence[str]) -> list[str]:
        """Return the worker for each partition that Dask computes."""
        client, timeout, n = self._work.client, self._work.timeout, self.n_trained
        homes = homes_of(client, self._given[:n], workers, timeout)
        return homes + homes_of(client, self._given[n:], sorted(set(homes)), timeout)

    def _bring(self) -> None:
        """Make missing partitions, and apply the remaining steps to all."""
        unmade = [number for number, stage in enumerate(self._stages) if stage < 0]
        if unmade:
            if self._slices:
                self._send(unmade)
            else:
                self._compute(unmade)
            self._await_partitions(unmade)
            self._find_holders(unmade)
        for stage, step in enumerate(self._steps, 1):
            numbers = [number for number in sorted(step.numbers) if self._stages[number] < stage]
            if not numbers:
                continue
            if step.change is None:
                self._give_recipes(numbers, stage)
            else:
                self._change(step.change, numbers, stage)

    def _compute(self, numbers: Sequence[int]) -> None:
        """Compute partitions, each on its worker."""
        given = {number: self._given_of(number) for number in numbers}
        homes = {number: self.holders[number] for number in numbers}
        parts = None
        if self._prepare is not None:
            parts = self._work.sent(self._prepare, homes[numbers[0]])
        with self._work.span():
            placed, made, shared = compute(
                self._work.client, given, homes, self._keeping, self._work.name(), parts,
                self._away(given) if any(confines()) else (),
            )  # fmt: skip
        shared += _futures_among(parts or ())
        for number, part in placed.items():
            self._partitions[number], self._stages[number] = part, 0
        self._owned += made + shared
        self._await_partitions(numbers)
        self._release({future.key for future in shared})

    def _away(self, given: Mapping[int, Partition]) -> set[int]:
        """Return partitions whose X is in memory on a worker where it must not stay."""
        keys = {number: part.X.key for number, part in given.items() if isinstance(part.X, Future)}
        who_has, timeout = "scheduler.who_has", self._work.timeout
        held = ask(self._work.client, who_has, timeout, keys=list(keys.values())) if keys else {}
        return {number for number, key in keys.items() if self.holders[number] not in held[key]}

    def _given_of(self, number: int) -> Partition:
        """Return a partition as the user gave it."""
        origin = self._origins[number]
        assert origin is not None
        return self._given[origin]

    def _send(self, numbers: Sequence[int]) -> None:
        """Send local rows, each to its worker."""
        work = self._work
        for number in numbers:
            origin, home = self._origins[number], self.holders[number]
            assert origin is not None
            with work.explaining():
                part, made = send(work.client, self._slices[origin], home, work.timeout, work.check)
            self._partitions[number], self._stages[number] = part, 0
            self._owned += made

    def _find_holders(self, numbers: Sequence[int]) -> None:
        """Locate partitions; a user's own may be elsewhere than requested."""
        work = self._work
        keys = {number: self._partitions[number].X.key for number in numbers}
        staying, held = work.staying_with(list(keys.values()))
        lost = [number for number, key in keys.items() if not held[key]]
        if lost:  # lost since it was computed
            work.check()
            raise WorkerLostError(
                f"partition {lost[0]} is no longer in memory: did its worker die?"
            )
        strayed = [number for number, key in keys.items() if self._has_strayed(number, held[key])]
        if strayed:
            self._compute(strayed)
            self._await_partitions(strayed)
            self._find_holders(numbers)
            return
        for number, key in keys.items():
            there = [worker for worker in held[key] if worker in staying]
            if self.holders[number] not in there:
                self.holders[number] = min(there or held[key])
        work.needed = set(self.holders)
        self.staying = staying

    def _has_strayed(self, number: int, held: Collection[str]) -> bool:
        """True if a user's X has left the workers that `dask.annotate` names.

        Dask removes copies of data that several workers hold.
        """
        own = bool(self._given) and self._partitions[number].X is self._given_of(number).X
        return own and any(confines()) and self.holders[number] not in held

    def _await_partitions(self, numbers: Sequence[int]) -> None:
        """Wait until partitions are computed; an error names the partition."""
        work = self._work
        placed = {number: self._partitions[number] for number in numbers}
        with naming_partitions(
            work.client, self._given, placed, self.n_trained, work.timeout
        ) as futures:
            work.wait(list(futures), futures)

    def _give_recipes(self, some: Sequence[int], stage: int) -> None:
        """Tell workers how to compute the partitions that they could not keep."""
        absent: list[int | None] = [None] * len(self._partitions)
        self._streams &= len(some) < len(self._partitions)
        looks = self._look(call_unopened, stands_for, some)
        for number, (streams, nbytes) in zip(some, looks, strict=True):
            self._streams |= streams
            absent[number] = nbytes
        given = [self._given_of(n) for n in range(len(self._partitions))]
        recipes = recipes_of_absent(given, absent, self.n_trained)
        if recipes:
            name = self._work.name()
            changes = {n: partial(attach_recipe, recipe=recipe) for n, recipe in recipes.items()}
            self._put({n: self._on(n, "recipe", name, changes[n]) for n in changes}, stage)
        for number in some:
            self._stages[number] = stage

    def streamed(self) -> dict[int, bool]:
        """Partitions that are not kept as they are read, with whether each is read as a whole."""
        if not self._streams:
            return {}
        found = dict(enumerate(self._look(call_unopened, is_whole)))
        streams = {number: whole for number, whole in found.items() if whole is not None}
        self._streams = bool(streams)
        return streams

    def map(
        self, function: Callable[..., Any], numbers: Sequence[int] | None = None,
        opened: bool = True, **options: Any,
    ) -> list[Any]:  # fmt: skip
        """Call a function on each partition, with one task per worker."""
        task = call_on_each if opened else call_unopened
        return self._look(task, partial(function, **options), numbers)

    def sum(self, function: Callable[..., Any], numbers: Sequence[int], **options: Any) -> Any:
        """Add up a function's results over partitions, first on each worker."""
        answers = self._ask(sum_of_each, partial(function, **options), numbers)
        return reduce(operator.add, [found for _, (found,) in answers])

    def _look(
        self,
        task: Callable[..., list[Any]],
        function: Callable[..., Any],
        some: Sequence[int] | None = None,
    ) -> list[Any]:
        some = range(len(self._partitions)) if some is None else some
        found = {
            number: result
            for held, answers in self._ask(task, function, some)
            for number, result in zip(held, answers, strict=True)
        }
        return [found[number] for number in some]

    def _ask(
        self,
        task: Callable[..., list[Any]],
        function: Callable[..., Any],
        some: Sequence[int],
    ) -> list[tuple[list[int], list[Any]]]:
        """Return the partitions of each worker, and its answers."""
        work, look = self._work, self._work.name()
        numbers: dict[str, list[int]] = {}
        for number in some:
            numbers.setdefault(self.holders[number], []).append(number)
        call = partial(task, function)
        futures = work.start(
            Call(f"dps-inspect-{look}-{held[0]}", holder, call, ([*map(self.values, held)],))
            for holder, held in numbers.items()
        )
        self._owned += futures
        work.wait(futures, dict(zip(futures, numbers.values(), strict=True)))
        results = work.results(futures)
        # Otherwise they would hold the partitions.
        self._release({future.key for future in futures})
        return list(zip(numbers.values(), results, strict=True))

    def replace(self, change: Change, numbers: Sequence[int] | None = None) -> None:
        """Replace X of partitions; Dask forgets an old one after its last use."""
        numbers = range(len(self._partitions)) if numbers is None else numbers
        if numbers:
            self._steps.append(_Step(frozenset(numbers), change))
            self._bring()

    def _change(self, change: Change, numbers: Sequence[int], stage: int) -> None:
        work, name = self._work, self._work.name()
        self._streams |= self._keeping.cache != "memory"
        # One task holds the function for all partitions, since it may be large. Dask runs that task
        # again if its worker dies, whereas scattered data would be lost together with all that
        # depends on it.
        home = self.holders[numbers[0]]
        parts = work.sent(change, home)
        [shared] = work.start([Call(f"dps-shared-{name}", home, unpacked, (parts,))])
        self._owned += [shared, *_futures_among(parts)]
        self._put(
            {
                n: self._on(n, "convert", name, partial(remake_partition, self._keeping, n), shared)
                for n in numbers
            },
            stage,
        )
        self._release({shared.key, *(part.key for part in _futures_among(parts))})

    def _on(self, number: int, what: str, name: str, change: Any, *args: Any) -> Call:
        """Return a call on a partition's X on its worker."""
        key, X = f"dps-{what}-{name}-{number}", self._partitions[number].X
        return Call(key, self.holders[number], change, (*args, X))

    def _put(self, calls: Mapping[int, Call], stage: int) -> None:
        """Let results replace X of partitions, and wait for them."""
        old = {self._partitions[number].X.key for number in calls}
        made = dict(zip(calls, self._work.start(calls.values()), strict=True))
        for number, future in made.items():
            self._partitions[number] = replace(self._partitions[number], X=future)
            self._stages[number] = stage
        self._release(old)
        self._owned += made.values()
        self._work.wait([*made.values()], {future: (n,) for n, future in made.items()})

    def _release(self, keys: set[str]) -> None:
        """Release Futures that this fit has made."""
        for future in self._owned:
            if future.key in keys:
                future.release()
        self._owned = [future for future in self._owned if future.key not in keys]

    def exchange(self, split: RandomSplit, homes: Sequence[str]) -> None:
        """Move all rows to random new partitions, and release the old ones of this fit."""
        work, n, new = self._work, len(split.rows), len(homes)
        work.needed |= set(homes)
        owned: list[Future] = []
        try:
            drawn = exchange(
                work, self._partitions[:n], self.holders[:n], split, homes, self._weighted, owned
            )
        except BaseException:
            for future in owned:
                future.release()
            raise
        self._release({value.key for part in self._partitions[:n] for value in _futures(part)})
        self._owned += owned
        self._partitions[:n], self.holders[:n] = drawn, homes
        self._origins[:n], self._stages[:n] = [None] * new, [len(self._steps)] * new
        self._steps = [
            replace(step, numbers=frozenset(m + new - n for m in step.numbers if m >= n))
            for step in self._steps
        ]
        self.n_trained = new

    def values(self, number: int) -> tuple[Any, Any, Any]:
        """X, y and weight of a partition, as arguments of tasks."""
        part = self._partitions[number]
        return part.X, part.y, part.weight

    def cut_out(self, pieces: Sequence[Piece]) -> dict[Piece, Future]:
        """Cut out rows that move to another worker, so that nothing else travels."""
        self._attempts = {}  # training begins
        self._release(self._moved)
        name = self._work.name()
        calls = [
            Call(
                f"dps-rows-{name}-{piece.partition}-{piece.start}", self.holders[piece.partition],
                cut_out, (self.values(piece.partition), piece.start, piece.stop),
            )
            for piece in pieces
        ]  # fmt: skip
        futures = dict(zip(pieces, self._work.start(calls), strict=True))
        self._moved = {future.key for future in futures.values()}
        self._owned += futures.values()
        self._work.wait(list(futures.values()))
        return futures

    def restore(self, alive: Sequence[str]) -> None:
        """Make partitions of lost workers again, and everything else that is missing.

        Raises WorkerLostError: another worker has died meanwhile; call it again.
        """
        there = set(alive) - self._work.reborn
        lost = [
            n for n, holder in enumerate(self.holders)
            if holder not in there and n not in self.gone
        ]  # fmt: skip
        self._work.reborn.clear()  # new workers hold nothing yet
        homes = homes_after(self.holders, alive)
        for number, home in enumerate(homes):
            self.holders[number] = home
        self._work.needed = set(homes)
        for number in lost:
            self._stages[number] = -1
            self._attempts[number] = self._attempts.get(number, 0) + 1
        worst = max(lost, key=self._attempts.__getitem__, default=0)
        if lost and self._attempts[worst] > _ATTEMPTS:
            raise ClusterError(
                f"partition {worst} was on {_ATTEMPTS + 1} workers that died before training "
                "began: does it fit into their memory?"
            )
        placed = [value.key for part in self._partitions for value in _futures(part)]
        self._work.unpin(placed)
        self._release({f.key for number in lost for f in _futures(self._partitions[number])})
        unmade = [number for number, stage in enumerate(self._stages) if stage < 0]
        gone = {number for number in unmade if self._origins[number] is None}
        if not self._slices:  # y may have been on another worker than X
            parts = dict(enumerate(self._partitions))
            parts |= {number: self._given_of(number) for number in set(unmade) - gone}
            for number in gone | self.gone:
                del parts[number]
            gone |= self._work.restored(parts)
        for number in gone:
            self._stages[number] = len(self._steps)
        self.gone |= gone
        self._bring()
        left = [number for number in range(len(self.holders)) if number not in self.gone]
        self._await_partitions(left)

    def close(self, alive: Mapping[str, int]) -> list[str]:
        """Release every Future; return the workers that have files of this fit."""
        for future in self._owned:
            future.release()
        self._owned, self._partitions, self._given, self._slices = [], [], [], []
        return sorted(set(self.holders) & set(alive)) if self._streams else []


def _futures(part: Partition) -> list[Future]:
    return _futures_among(vars(part).values())


def _futures_among(values: Iterable[Any]) -> list[Future]:
    return [value for value in values if isinstance(value, Future)]
