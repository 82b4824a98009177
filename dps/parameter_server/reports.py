"""Reports on a server, combined from its shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dps.parameter_server.shard.layout import ServerSpec

_COUNTED = ("writes", "reads")


def report(
    spec: ServerSpec, status: Sequence[dict[str, Any]], before: dict[str, Any] | None
) -> dict[str, Any]:
    """See `ParameterServer.stats`; rates are since `before`, else since the server's creation."""
    seconds = max(shard["seconds"] for shard in status if "lost" not in shard)
    tensors = {}
    for tensor in spec.tensors:
        parts = [shard["parts"][tensor.name] for shard in status if tensor.name in shard["parts"]]
        tensors[tensor.name] = {
            "shape": tensor.shape,
            "dtype": tensor.dtype,
            **{
                each: max((part[each] for part in parts), default=0)
                for each in ("writes", "pushes", "reads")
            },
            "bytes": sum(part["bytes"] for part in parts),
            **({"rows": sum(part["rows"] for part in parts)} if tensor.table else {}),
        }
    found: dict[str, Any] = {"name": spec.name, "seconds": seconds}
    elapsed = max(seconds - (before["seconds"] if before else 0.0), 1e-9)
    for each in _COUNTED:
        counts = sum(tensor[each] for tensor in tensors.values())
        past = sum(tensor[each] for tensor in before["tensors"].values()) if before else 0
        found[f"{each}_per_second"] = (counts - past) / elapsed
    found["bytes"] = sum(tensor["bytes"] for tensor in tensors.values())
    found["tensors"] = tensors
    found["shards"] = [
        {**{key: shard[key] for key in ("worker", "mirror", "callers")}, "lost": shard.get("lost")}
        for shard in status
    ]
    return found
