"""Which process reads which partitions: traffic by hour of the week, the load that it predicts, and a spread that moves little."""
