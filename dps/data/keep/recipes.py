"""Recipes to compute single partitions of Dask collections again.

Partitions must not share work: after a shuffle each of them would cost as much as all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dps.data.collections.partitions import Partition, is_part
from dps.data.keep.streams import Values


@dataclass(frozen=True)
class Recipe:
    """The tasks that make one partition."""

    tasks: Mapping[Any, Any]  # a Dask graph
    keys: tuple[Any, Any, Any]  # keys of X, y and weight in it; None for a missing weight

    def __call__(self) -> Values:
        """Compute X, y and weight in this thread.

        Raises Exception: whatever a task raised.
        """
        from dask.local import get_sync

        wanted = [key for key in self.keys if key is not None]
        X, y, *weight = get_sync(dict(self.tasks), wanted)
        return X, y, weight[0] if weight else None


def recipes_of(partitions: Sequence[Partition]) -> list[Recipe] | None:
    """Return a recipe for each partition; None if they share work or some of it is in memory."""
    from dask._task_spec import DataNode

    if not all(hasattr(value, "__dask_graph__") for value in _values(partitions)):
        return None  # some of it is in memory
    graph = _graph_of(partitions)
    nodes = _nodes_of(graph)
    if any(is_part(getattr(node, "value", graph.get(key))) for key, node in nodes.items()):
        return None
    user: dict[Any, int] = {}
    recipes = []
    for number, part in enumerate(partitions):
        keys = tuple(None if value is None else value.key for value in vars(part).values())
        tasks = _needed(nodes, (key for key in keys if key is not None))
        for key, node in tasks.items():
            if user.setdefault(key, number) != number and not isinstance(node, DataNode):
                return None
        recipes.append(Recipe(tasks, keys))  # type: ignore[arg-type]
    return recipes


def shared_tasks(groups: Iterable[Sequence[Partition]]) -> list[Any]:
    """Return the tasks that partitions of several groups need, as Delayed objects."""
    from dask._task_spec import DataNode
    from dask.delayed import Delayed

    graph = _graph_of([part for group in groups for part in group])
    nodes = _nodes_of(graph)
    user: dict[Any, int] = {}
    shared = []
    for number, group in enumerate(groups):
        left = [v.key for v in _values(group) if hasattr(v, "__dask_graph__")]
        while left:
            key = left.pop()
            if key not in nodes:  # a Future
                continue
            if key not in user:
                user[key] = number
                left += nodes[key].dependencies
            elif user[key] not in (number, -1) and not isinstance(nodes[key], DataNode):
                user[key] = -1
                shared.append(key)
    return [Delayed(key, graph) for key in shared]


def _values(partitions: Iterable[Partition]) -> list[Any]:
    return [value for part in partitions for value in vars(part).values() if value is not None]


def _graph_of(partitions: Iterable[Partition]) -> dict[Any, Any]:
    """Return all tasks behind some partitions."""
    graph: dict[Any, Any] = {}
    merged: dict[int, Any] = {}  # holds the graphs, so that ids are not reused
    for value in _values(partitions):
        tasks = value.__dask_graph__() if hasattr(value, "__dask_graph__") else {}
        if id(tasks) not in merged:
            merged[id(tasks)] = tasks
            graph.update(tasks)
    return graph


def _nodes_of(graph: dict[Any, Any]) -> dict[Any, Any]:
    from dask._task_spec import convert_legacy_graph

    return convert_legacy_graph(graph)


def _needed(nodes: Mapping[Any, Any], keys: Iterable[Any]) -> dict[Any, Any]:
    """Return the tasks behind some keys."""
    found: dict[Any, Any] = {}
    left = list(keys)
    while left:
        key = left.pop()
        if key not in found:
            found[key] = nodes[key]
            left += nodes[key].dependencies
    return found
