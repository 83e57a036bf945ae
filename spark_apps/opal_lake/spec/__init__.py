"""What a table is: its columns, keys, the columns that order its rows, properties and delete condition, and how a key becomes a hash."""
