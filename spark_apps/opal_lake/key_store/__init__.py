"""The key store: where a key is now, as immutable sorted runs over ranges of the key hash.

`run` encodes a run, `entries` holds its contents in order: key hash, delta, tie-break, row.
`probe` finds the neighbours of new entries, `merge` decides which runs become one.
"""
