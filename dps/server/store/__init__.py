"""The contents of a shard: parameters, snapshots and table rows."""
