"""Computation of Dask partitions, each stored where there is room.

If a partition fails in this process, the error names the keys that were running.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask
from dask.callbacks import Callback

from dps._warned import warn
from dps.data.collections.partitions import Counted, Partition
from dps.data.collections.results import computing
from dps.data.collections.sealed import identity, sealed
from dps.data.keep.keeping import Keeping, attach_recipe, keep_partition, recomputed_bytes
from dps.data.keep.recipes import Recipe, recipes_of
from dps.errors import ClusterError

_log = logging.getLogger("dps")

_KEPT = "dps-keep-"
#: Seconds between two reports.
_REPORT_SECONDS = 1.0


def computed(
    partitions: Sequence[Partition],
    keeping: Keeping,
    prepare: Callable[[Any, int], Any] | None = None,
    trained: int | None = None,
    loading: Counted = lambda done, total: None,
) -> list[Partition]:
    """Compute partitions together in this process, so that shared work is done once.

    keeping: where they may be stored.
    prepare: ``prepare(X, number)`` replaces X.
    trained: number of training partitions; by default all.
    loading: called once a second with the numbers of computed partitions and of all.
    Returns partitions whose X stands for all three.
    Raises Exception: whatever a partition raised, with a note that names the task.
    """
    running = _Running(len(partitions), loading)
    try:
        with running:
            held = None
            if prepare is not None:
                held = dask.delayed(sealed(identity, prepare), pure=False)()
            kept = delayed_keep(keeping, held, dict(enumerate(partitions)))
            made = list(dask.compute(*kept, **computing()))
    except Exception as error:
        if running.keys:  # other tasks may have been running, too
            error.add_note(f"raised while Dask computed {' or '.join(map(repr, running.keys))}")
        raise
    absent = list(map(recomputed_bytes, made))
    for number, recipe in recipes_of_absent(partitions, absent, trained).items():
        made[number] = attach_recipe(made[number], recipe)
    return [Partition(values, None, None) for values in made]


def delayed_keep(
    keeping: Keeping,
    prepare: Any,
    partitions: Mapping[int, Partition],
    name: str = "",
) -> list[Any]:
    """Return Delayed objects that store partitions, by number.

    prepare: Delayed function that changes each partition, or None.
    """
    keep = dask.delayed(sealed(keep_partition, keeping), pure=False)
    return [
        keep(
            prepare, number, part.X, part.y, part.weight,
            dask_key_name=f"{_KEPT}{name or keeping.fit}-{number}",
        )
        for number, part in partitions.items()
    ]  # fmt: skip


def storage_for(
    fit: str, cache: str | None, partitions: Sequence[Partition], trained: int | None = None
) -> Keeping:
    """Choose where to store partitions, which depends on whether each can be computed alone.

    For a large graph it takes a while to see that they cannot. With "auto" the graph is examined
    only if INFO messages are logged.
    """
    heard = cache == "auto" and _log.isEnabledFor(logging.INFO)
    if (cache is None or heard) and None in _recipes(partitions, trained):
        why = "the partitions share work, as after a shuffle, or lie in memory in part"
        if heard:
            _log.info("%s: Dask computes them together, and spills what does not fit", why)
            return Keeping(fit, cache)
        warn(
            f"{why}: they are kept as by default, since dps.cache=None would do all that work "
            "again for each",
            UserWarning,
            stacklevel=2,
        )
        cache = "auto"
    return Keeping(fit, cache)


def _recipes(partitions: Sequence[Partition], trained: int | None) -> list[Recipe | None]:
    """Return recipes to compute partitions again; None if one cannot be computed alone.

    Validation data may share work with training data, for example if one task reads both.
    """
    found: list[Recipe | None] = []
    for some in (partitions[:trained], [] if trained is None else partitions[trained:]):
        found += recipes_of(some) or [None] * len(some)
    return found


def recipes_of_absent(
    partitions: Sequence[Partition], sizes: Sequence[int | None], trained: int | None = None
) -> dict[int, Recipe]:
    """Return recipes for the partitions that could not be stored, by number.

    sizes: bytes of partitions that could not be stored, None for the others.
    trained: number of training partitions; by default all.
    Raises ClusterError: partitions share work, so none can be computed alone.
    """
    absent = {number: size for number, size in enumerate(sizes) if size is not None}
    if not absent:
        return {}
    recipes = _recipes(partitions, trained)
    found = {}
    for number, nbytes in absent.items():
        recipe = recipes[number]
        if recipe is None:
            raise ClusterError(
                f"partition {number} ({nbytes / 2**30:.3g} GiB) fits neither in memory nor on the "
                "disk, and cannot be computed again by itself, since partitions share work or lie "
                "in memory in part: give workers more memory, or a local directory on a larger disk"
            )
        found[number] = recipe
    return found


class _Running(Callback):  # type: ignore[misc]
    """The running tasks, and the number of computed partitions."""

    def __init__(self, total: int, loading: Counted) -> None:
        super().__init__()
        self.keys: dict[Any, None] = {}
        self._done, self._total, self._loading = 0, total, loading
        self._due = time.monotonic() + _REPORT_SECONDS

    def _pretask(self, key: object, dsk: Any, state: Any) -> None:
        self.keys[key] = None

    def _posttask(self, key: object, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        self.keys.pop(key, None)
        self._done += isinstance(key, str) and key.startswith(_KEPT)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _REPORT_SECONDS
            self._loading(self._done, self._total)
