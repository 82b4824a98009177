"""A step of each mode."""
