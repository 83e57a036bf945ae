"""The supervisor of a stream with several processes: it starts, watches and ends them.

`observation` reads the positions of partitions, and `planner` decides which process reads which
partition. `fleet` turns one plan into the next. `child` starts and ends a process, and `process`
restarts it after longer and longer pauses. `committer` watches the process that commits gathered
files. `supervisor` does all of this until the stream ends.
"""
