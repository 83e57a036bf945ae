"""Messages to rows: a batch of them at a time, with those that are none named by topic, partition and offset.

`parsers` lists the formats, and `decoder` makes rows of what they parse (`json_lines`, `debezium_json`, `avro`, `registry_json`) and says
what a tombstone means. `columns` come from the message itself, `deletes` is the table's delete condition.
"""
