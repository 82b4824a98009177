"""What runs in a replica: blocks of rows, steps, validation, and its channel to the group."""
