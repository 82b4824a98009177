"""Saved estimators."""
