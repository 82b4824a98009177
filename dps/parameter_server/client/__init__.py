"""A client's access to the shards of a server."""
