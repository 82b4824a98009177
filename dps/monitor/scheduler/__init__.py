"""What runs in the scheduler: the store of events, and the page."""
