"""Checkpoints: options, writing, files, locks."""
