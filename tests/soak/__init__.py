"""Writers and readers of a table in their own processes, for any length of time."""
