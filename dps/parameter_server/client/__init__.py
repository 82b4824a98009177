"""Ways for a client to reach the shards of a server."""
