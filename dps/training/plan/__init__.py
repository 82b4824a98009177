"""How rows are shared out: replicas, batches, held-out rows."""
