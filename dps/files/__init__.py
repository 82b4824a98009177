"""Files: records as JSON, directories of arrays."""
