"""Monitoring of fits: events, their senders, and the dashboard page."""
