"""What runs in a shard's worker: counters and reporters."""
