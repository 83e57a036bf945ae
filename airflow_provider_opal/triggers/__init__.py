"""Waiting for tables without a worker."""
