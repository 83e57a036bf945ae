"""The supervisor of a stream with several processes: it starts, watches and ends them.

`observation` reads where each partition stands, `planner` decides which process reads it. `fleet`
turns one plan into the next, `process` restarts one process, after longer and longer pauses,
`child` begins and ends one, `committer` watches the one that commits what the others gather, and
`supervisor` does all of this until the stream ends.
"""
