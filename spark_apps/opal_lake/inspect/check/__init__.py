"""Whether a table is what FORMAT.md says.

`check` says what is looked at, in which order; the other modules hold what is expected of each
part, `content` what rows, events and entries mean for each other.
"""
