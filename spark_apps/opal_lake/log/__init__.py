"""What is true at a version: commits, the state that they add up to, and the rules by which a new one joins them.

`commit` is one entry, `commit_log` appends it or loses the race (`conflict`; of two rewrites of a file, `rewrite.rewrite_job`
leaves out what the other took), `snapshot` is the state. `checkpoint`
keeps it ready: `lists` says of which lists, `sections` how one is cut into parts. `visibility` says which rows count at an event
time, and from which bitmap base on, `version_window` which versions are kept, `claim` gives jobs their numbers, `store_clock` and
`commit_times` tell when.
"""
