"""Compiled loops over NumPy arrays, which hold no Python objects."""
