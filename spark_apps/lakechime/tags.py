"""Tags of events whose snapshots do not simply follow one another.

Producers set them; consumers and `chain` read them.
"""

# Distinguishes two snapshots of one id: the table was created again, or went back to the older one
AGAIN = "lakechime.again"
# The partition as JSON, where the table's partitions have other levels than its events: one, or a
# list of them
OTHER_PARTITION = "lakechime.partition"
# The snapshots that expired before they were registered; the event stands for them
LOST = "lost_snapshots"
# The older snapshot that the table went back to
RESTORED = "restored_snapshot_id"
