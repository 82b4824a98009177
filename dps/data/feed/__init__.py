"""From partitions to the rows of each step."""
