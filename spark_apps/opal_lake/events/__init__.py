"""Which rows are visible: UNTIL events in segment logs, and the bitmaps that sum them up."""
