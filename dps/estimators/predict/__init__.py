"""Predictions, block by block."""
