"""Views as DataFrames, filters that skip files, and `format("opal")`."""
