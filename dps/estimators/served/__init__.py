"""Models on a parameter server that others read during training."""
