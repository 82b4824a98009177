"""Ways of a rank to a shard: mapped memory, a stream, Actor calls; each shard has its own."""

from __future__ import annotations

from dps.transport.base import Link
from dps.transport.connect import connect
from dps.transport.host import HostLink

__all__ = ["HostLink", "Link", "connect"]
