"""What a table is: its columns, keys, order of rows, properties and delete condition, and how a key becomes a hash."""
