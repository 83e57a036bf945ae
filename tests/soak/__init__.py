"""Upserts, rewrites and readers in processes of their own on one table, for as long as one likes: `python -m tests.soak --help`."""
