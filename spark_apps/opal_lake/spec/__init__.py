"""The definition of a table: columns, keys, ordering columns, properties and delete condition; and the hash of a key."""
