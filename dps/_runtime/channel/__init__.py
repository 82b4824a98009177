"""Channels: a rank's access to a shard during steps."""
