"""Reads of some pages of a Parquet file.

`page_index` finds the pages, `chosen_rows` reads those that hold chosen rows: `few_values` takes
single values out of them, `laid_out` has Arrow decode the others.
"""
