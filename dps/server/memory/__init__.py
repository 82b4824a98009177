"""Shared memory: files, arrays, leases."""
