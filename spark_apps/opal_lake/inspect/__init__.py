"""Inspection of a table without changes: `describe` shows it, `check` verifies it."""
