"""Triggers: the rules of when data-change events start something, without a scheduler.

`snapshot` asks what changed since the consumer's last success, `partition` whether a partition is
registered, `schedule` when to ask.
"""
