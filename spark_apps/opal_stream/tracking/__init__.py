"""Reports of a stream: an event for each partition of a flush, metrics, alarms and its status."""
