"""The parts of a fit that run in the scheduler."""
