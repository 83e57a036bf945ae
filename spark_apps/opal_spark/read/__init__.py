"""Views as DataFrames, change feeds, and filters that skip files.

`reader` plans the scans of a view. `words` brings the bitmaps to the rows and tests the bit of each. `predicate` translates a filter into
conditions on the bounds of files.
"""
