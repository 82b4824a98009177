"""What a rank has of its group: its steps, reductions, and the end of an epoch."""

from __future__ import annotations

from dps.group.channel import Channel, ChannelSpec, Decide, HostPlace, raise_unless_ran

__all__ = ["Channel", "ChannelSpec", "Decide", "HostPlace", "raise_unless_ran"]
