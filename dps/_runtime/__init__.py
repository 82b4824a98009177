"""Compiled loops that ranks and shards run: windows, waiting, steps, wires; no numerics."""
