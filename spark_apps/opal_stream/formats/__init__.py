"""Messages to rows: a batch of them at a time, with those that are none named by topic, partition and offset."""
