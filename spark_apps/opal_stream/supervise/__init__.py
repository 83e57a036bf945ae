"""Several processes of one stream: who reads what by load, started, watched, started again, and never left alone.

`observation` says where each partition stands, `planner` which process reads it. `fleet` turns one plan into the next, `process` starts
one process again, each time after a longer pause, `child` how such a process begins and ends, `committer` is the one that commits what the
others gather, and `supervisor` does all that until the stream ends.
"""
