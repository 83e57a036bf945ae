"""The visibility of rows: UNTIL events in segment logs, and the bitmaps that sum them up."""
