"""Compiled loops of ranks and shards: windows, waiting, steps and wires, without numerics."""
