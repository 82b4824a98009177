"""Access of a rank to shards: mapped memory, a stream, or Actor calls."""

from __future__ import annotations

from dps.transport.base import Link
from dps.transport.connect import connect
from dps.transport.host import HostLink

__all__ = ["HostLink", "Link", "connect"]
