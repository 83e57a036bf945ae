"""What two databases have in common: transactions, errors, and rows as one parameter."""
