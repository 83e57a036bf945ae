"""Messages to rows: a batch of them at a time, with the bad ones named by topic, partition and offset.

`parser_by_format` chooses a parser (`json_lines`, `debezium_json`, `avro`, `registry_json`), and
`decoder` makes rows of what it parses and says what a tombstone means. `columns` come from the
message itself, `deletes` is the table's delete condition.
"""
