"""What runs in the scheduler for a fit."""
