"""Tables of many commits, partitions and rows against a model."""
