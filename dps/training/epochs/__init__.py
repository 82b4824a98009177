"""Epochs: their records, and when training stops."""
