"""What the databases have in common: transactions, errors, rows as one parameter, and the statements that are built once."""
