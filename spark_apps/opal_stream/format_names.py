"""The formats of messages, by the names that the argument `format` accepts.

`formats/parser_by_format.py` returns the parser of a format.
"""

from dataclasses import dataclass

# Debezium's default for a large value that an update did not touch
UNAVAILABLE = "__debezium_unavailable_value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The properties of a format."""

    is_avro: bool = False
    is_registered: bool = False
    is_debezium: bool = False


FORMATS = {
    "json": Format(),
    "json-registry": Format(is_registered=True),
    "avro": Format(is_avro=True, is_registered=True),
    "debezium-json": Format(is_debezium=True),
    "debezium-json-registry": Format(is_debezium=True, is_registered=True),
    "debezium-avro": Format(is_avro=True, is_registered=True, is_debezium=True),
}
