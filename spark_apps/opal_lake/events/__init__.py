"""Which rows still count: UNTIL events in segment logs, and the bitmaps that sum them up."""
