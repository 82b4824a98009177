"""Messages between ranks and shards."""
