"""What is true at a version: commits, the state that they add up to, and the rules by which a new one joins them.

`commit` is one entry, `commit_log` appends it or loses the race (`conflict`), `snapshot` is the state, `checkpoint` and `sections` keep it
ready, `claim` gives jobs their numbers, `store_clock` and `commit_times` tell when.
"""
