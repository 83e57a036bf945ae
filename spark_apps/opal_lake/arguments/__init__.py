"""Arguments as they are declared: what a declaration can do, and the kinds of values."""
