"""What a shard holds: parameters, snapshots, table rows."""
