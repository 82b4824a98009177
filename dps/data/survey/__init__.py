"""What is found in rows before training: defects, labels, moments, quantiles."""
