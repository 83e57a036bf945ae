"""Files whose names and paths say something about their rows: deletes, and the order of rows."""
