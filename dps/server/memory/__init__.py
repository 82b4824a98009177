"""Shared memory: files, arrays and leases."""
