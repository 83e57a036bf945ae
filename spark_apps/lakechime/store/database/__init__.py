"""The base of the store: transactions, errors, rows as one parameter, and cached statements."""
