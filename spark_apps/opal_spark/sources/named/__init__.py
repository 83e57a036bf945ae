"""Files whose names and places say something about their rows: which of them hold deletes, and which row is later."""
