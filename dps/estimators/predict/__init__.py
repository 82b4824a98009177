"""Predictions, one block of rows at a time."""
