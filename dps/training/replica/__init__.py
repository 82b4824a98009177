"""The parts of a replica: blocks of rows, steps, validation and its channel."""
