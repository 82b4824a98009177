"""The page of fits on Dask's dashboard; only its modules import bokeh."""
