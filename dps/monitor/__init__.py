"""Watching fits: what they say (``events``), who says it, and where it shows."""
