"""How a client reaches the shards of a server."""
