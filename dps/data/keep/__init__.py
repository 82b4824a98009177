"""Storage of encoded partitions: memory, disk, or recomputation."""
