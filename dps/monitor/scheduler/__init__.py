"""The parts that run in the scheduler: the store of events, and the page."""
