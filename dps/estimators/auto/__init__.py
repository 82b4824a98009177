"""The rules of "auto"."""
