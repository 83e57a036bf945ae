"""Views as DataFrames, and change feeds.

`reader` plans the scans of a view. `words` brings the bitmaps to the rows and tests the bit of
each.
"""
