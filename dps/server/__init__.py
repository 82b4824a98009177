"""The shards of a fit: their memory, the object that owns it, and access to them."""
