"""Views as DataFrames, change feeds, and filters that skip files."""
