"""The parts that run in a shard's worker: counters and reporters."""
