"""Checkpoints of a running fit: options, writer, files and lock."""
