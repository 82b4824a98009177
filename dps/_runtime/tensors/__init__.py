"""Parts of named tensors, and their mirrors."""
