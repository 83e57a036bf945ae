"""Processes at work on a table are killed at random moments, and run again: `python -m tests.crash --help`."""
