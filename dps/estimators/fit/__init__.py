"""A fit: inputs, survey, encoding, validation, callbacks."""
