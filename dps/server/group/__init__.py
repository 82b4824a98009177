"""The window of a group: operations, deadlines and sessions."""
