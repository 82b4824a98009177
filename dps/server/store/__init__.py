"""The contents of a shard: parameters, snapshots, table rows."""
