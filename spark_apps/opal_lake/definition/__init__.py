"""The definition of a table: columns, keys, ordering columns, properties and delete condition; and the hash of a key.

`schema` has the types of columns, `table_spec` the whole definition, `properties` what may be set later, `added_columns` what columns may
come. `ordering` turns deltas and tie-breaks into numbers. `conditions` is the language of delete conditions and filters.
"""
