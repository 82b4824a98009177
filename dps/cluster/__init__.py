"""Where replicas run: on the workers of a Dask cluster, or in threads of this process."""
