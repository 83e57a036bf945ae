"""Where a key is now: immutable sorted runs over ranges of the key hash.

`run` is a run as bytes, `entries` what it holds, in order: key hash, delta, tie-break, row. `probe` finds the neighbours of new entries,
`merge` says which runs become one.
"""
