"""The plan which process reads which partitions: traffic, the load it predicts, and a spread."""
