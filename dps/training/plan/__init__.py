"""The assignment of rows: replicas, batches and held-out rows."""
