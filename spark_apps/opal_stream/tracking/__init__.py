"""What a stream tells of itself: an event for each partition of a flush, metrics, and its status as the table knows it."""
