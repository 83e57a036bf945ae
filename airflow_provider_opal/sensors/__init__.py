"""Tasks that wait for new versions of a table."""
