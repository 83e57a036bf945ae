"""Waiting for tables."""
