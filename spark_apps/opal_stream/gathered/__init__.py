"""Rows between a stream's flush and a commit: files in the table's own store, and the order in which they are committed."""
