"""How a rank reaches a shard: mapped memory, a stream, Actor calls; each shard in its own way."""

from __future__ import annotations

from dps.transport.base import Link
from dps.transport.connect import connect
from dps.transport.host import HostLink

__all__ = ["HostLink", "Link", "connect"]
