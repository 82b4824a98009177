"""How partitions of Dask collections are computed again, each alone, wherever that is asked for.

Possible where partitions share no work: of a graph with a shuffle in front, each alone would cost
as much as all together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dps.data.partitions import Partition, is_part
from dps.data.streams import Values


@dataclass(frozen=True)
class Recipe:
    """The tasks that make one partition."""

    tasks: Mapping[Any, Any]  # A Dask graph
    keys: tuple[Any, Any, Any]  # of X, y and weight in it; None for a weight that is not there

    def __call__(self) -> Values:
        """Compute X, y and weight in this thread.

        Raises
        ------
        Exception
            What a task raised.
        """
        from dask.local import get_sync

        wanted = [key for key in self.keys if key is not None]
        X, y, *weight = get_sync(dict(self.tasks), wanted)
        return X, y, weight[0] if weight else None


def recipes_of(partitions: Sequence[Partition]) -> list[Recipe] | None:
    """A recipe for each partition; None if they share work, or some of it is in memory."""
    graph: dict[Any, Any] = {}
    merged: dict[int, Any] = {}  # with the graphs, whose numbers others might get else
    for part in partitions:
        for value in vars(part).values():
            if value is None:
                continue
            if not hasattr(value, "__dask_graph__"):  # a Future
                return None
            tasks = value.__dask_graph__()
            if id(tasks) not in merged:
                merged[id(tasks)] = tasks
                graph.update(tasks)
    from dask._task_spec import DataNode, convert_legacy_graph

    nodes = convert_legacy_graph(graph)
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


def _needed(nodes: Mapping[Any, Any], keys: Iterable[Any]) -> dict[Any, Any]:
    """The tasks behind some keys."""
    found: dict[Any, Any] = {}
    left = list(keys)
    while left:
        key = left.pop()
        if key not in found:
            found[key] = nodes[key]
            left += nodes[key].dependencies
    return found
