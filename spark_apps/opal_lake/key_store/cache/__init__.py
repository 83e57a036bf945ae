"""Local copies of runs, on the worker that probes them."""
