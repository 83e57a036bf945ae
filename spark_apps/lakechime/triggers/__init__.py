"""When data-change events start something: the semantics, without a scheduler.

`snapshot` asks what changed since the consumer's last success, `partition` whether a partition is there, `schedule` when to ask.
"""
