"""Runs near the worker that probes them."""
