"""From collections to partitions to mini-batches.

Data stays where it is and as it is. Nothing here knows the insides of models, modes or servers.
"""
