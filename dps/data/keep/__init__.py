"""Where encoded partitions are kept: memory, disk, or computed again."""
