"""Names of tags by which producers mark events whose snapshots do not simply follow one another.

Consumers and `chain` read them.
"""

# Distinguishes two snapshots of one id: the table was created again, or went back to an older one
AGAIN = "lakechime.again"
# The partition as JSON, or a list of partitions, of an event that names no partition because its
# number of levels differs from that of the table's earlier events
OTHER_PARTITION = "lakechime.partition"
# The snapshots that expired before they were registered, and that this event stands for
LOST = "lost_snapshots"
# The older snapshot that the table went back to
RESTORED = "restored_snapshot_id"
