"""Findings in the rows before training: defects, labels, moments, quantiles."""
