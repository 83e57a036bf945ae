"""Tags by which producers say that snapshots do not simply follow one another. Consumers and `chain` look for them."""

AGAIN = "lakechime.again"  # tells a snapshot from an earlier one of the same id: of a table that was made again, or went back to it
OTHER_PARTITION = "lakechime.partition"  # as JSON, where a table's partitions have other levels than its events: one, or the list of them
LOST = "lost_snapshots"  # which snapshots expired before they were registered; the event stands for them
RESTORED = "restored_snapshot_id"  # the older snapshot that the table went back to
