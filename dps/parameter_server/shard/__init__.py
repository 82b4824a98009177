"""A shard of named tensors: its layout, its state, its Actor and its mirror."""
