"""Facts about rows before training: defects, labels, moments and quantiles."""
