"""Dask collections and local containers as aligned partitions."""
