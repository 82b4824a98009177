"""Places where replicas run: the workers of a Dask cluster, or threads of this process."""
