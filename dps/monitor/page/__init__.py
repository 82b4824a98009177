"""The page of fits on Dask's dashboard: bokeh is imported by its modules, and nowhere else."""
