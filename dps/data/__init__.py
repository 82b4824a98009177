"""From collections to partitions to mini-batches.

Data stays where it lies and as it is; nothing here knows models' insides, modes or
servers.
"""
