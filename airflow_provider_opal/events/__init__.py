"""Data-change events in Airflow: their assets, tasks and triggers, and their registration.

`interest` defines the wanted events, `poller` waits for them, `consumer` gives each run its range
by `claims`, and `state` stores its progress. `handover` passes events to tasks, `commits` registers
those of an Opal table.
"""
