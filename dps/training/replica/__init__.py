"""The parts that run in a replica: blocks of rows, steps, validation, and its channel."""
