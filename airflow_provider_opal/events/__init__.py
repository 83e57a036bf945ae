"""Data-change events on Airflow's side: their assets, how they reach tasks, who waits for them, and how tables register theirs.

`interest` says which events are meant, `poller` waits for them, `consumer` gives each run its range, by `claims`, and `state` keeps how far
it is. `handover` brings events to tasks, `commits` registers those of an Opal table.
"""
