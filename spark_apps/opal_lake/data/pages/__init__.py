"""Single pages of Parquet files: Arrow's reader knows row groups only, so that chosen pages are laid out for it as a file of their own.

`few_values` takes values out of pages without it.
"""
