"""Reads of some pages of a Parquet file.

`page_index` finds the pages, and `chosen_rows` reads the pages that hold chosen rows. `few_values`
takes single values out of pages. `laid_out` lets Arrow decode all other pages.
"""
