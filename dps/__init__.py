"""Data-parallel training of models on Dask clusters."""

__version__ = "0.1.0"
