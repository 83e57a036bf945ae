"""The decoding of messages to rows: a batch at a time, with bad ones named by partition and offset.

`parser_by_format` chooses a parser (`json_lines`, `debezium_json`, `avro`, `registry_json`), and
`decoder` makes rows of what it parses and handles tombstones. `columns` come from the message
itself, `keys` reads its key.
"""
