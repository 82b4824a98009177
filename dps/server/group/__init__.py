"""The window of a group: operations, deadlines, sessions."""
