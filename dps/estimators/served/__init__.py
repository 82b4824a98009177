"""Models that others read from a parameter server while they train."""
