"""Channels: a rank's way to a shard."""
