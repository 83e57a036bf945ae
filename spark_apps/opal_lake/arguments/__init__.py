"""Arguments as they are declared, and the kinds of their values."""
