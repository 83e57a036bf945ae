"""Files whose names or positions have a meaning: their rows are deletes, or are in an order."""
