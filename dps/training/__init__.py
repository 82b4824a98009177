"""One fit: plan, launch, watch, result.

It reaches models, modes and clusters through their interfaces.
"""
