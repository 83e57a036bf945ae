"""Where a key is now: immutable sorted runs over ranges of the key hash."""
