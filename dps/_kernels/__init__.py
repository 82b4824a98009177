"""Compiled loops over NumPy arrays: they know lengths and numbers, and no Python object."""
