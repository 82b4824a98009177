"""One fit: plan, launch, watch, result.

Knows models, modes and clusters through their interfaces only.
"""
