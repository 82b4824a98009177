"""The steps of each mode."""
