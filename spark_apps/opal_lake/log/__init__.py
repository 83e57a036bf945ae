"""The state of a table at a version, the commits that make it, and the rules for new ones.

- `commit` is one entry of the log. `commit_log` appends it, or loses the race.
- `conflict` decides what a lost race means for a job. Of two rewrites of a file,
  `maintenance.rewrite_job` leaves out what the other one rewrote.
- `snapshot` is the state. `checkpoint` stores it: `lists` defines its lists, `sections` cuts them
  into parts. `pages` hold copies of neighbouring commits.
- `visibility` finds the hidden rows at an event time, from the newest bitmap bases on.
- `pending` selects pending segments, `version_window` the versions that are kept.
- `claim` gives jobs their numbers; `store_clock` and `commit_times` give commits their times.
"""
