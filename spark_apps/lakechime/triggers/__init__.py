"""Triggers: rules by which data-change events start a flow, without a scheduler.

`snapshot` finds the changes since a consumer's last success, and `partition` a registered
partition. `schedule` has the times at which a trigger is evaluated.
"""
