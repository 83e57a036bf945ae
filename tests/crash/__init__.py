"""Tests that kill processes at random and run them again: `python -m tests.crash`."""
