"""The definition of a table: columns, keys, order, properties, delete condition.

`schema` has the types of columns, `table_spec` the whole definition, `properties` what may be set
later, `added_columns` the columns that are added later. `ordering` turns deltas and tie-breaks
into numbers, `key_hash` keys into hashes. `conditions` is the language of delete conditions and
filters.
"""
