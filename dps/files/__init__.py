"""Files: records as JSON, and directories of arrays."""
