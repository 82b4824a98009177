"""Doctests of what needs PyTorch run where it is installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["dps/torch/*"]
