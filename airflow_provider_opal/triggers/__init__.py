"""The waits of the sensors in the triggerer, without a worker.

`snapshot` polls for versions, `events` for events of LakeChime.
"""
