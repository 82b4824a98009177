"""The assignment of rows: replicas, batches, held-out rows."""
