"""JSON schemas of events, made from the limits of the event module."""

from typing import Any

from lakechime.event import (
    DEFAULT_CLUSTER,
    FIELDS,
    GIVEN_AT_REGISTRATION,
    MAX_NAME_BYTES,
    MAX_NAME_CHARS,
    MAX_PARTITION_LEVELS,
    MAX_SNAPSHOT_CHARS,
    MAX_TAG_NAME_CHARS,
    MAX_TAG_VALUE_CHARS,
    MAX_TAGS,
    OperationType,
    TableFormat,
)

_CLEAN = r"^[^\u0000-\u001f\u007f-\u009f]*$"
_WITHOUT_NUL = r"^[^\u0000]*$"
_LONG = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _text(max_chars: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": max_chars, "pattern": _CLEAN}


NAME = {
    **_text(MAX_NAME_CHARS),
    "description": f"at most {MAX_NAME_BYTES:,} bytes in UTF-8, which every database can index",
}
_SNAPSHOT = _or_null(
    {**_text(MAX_SNAPSHOT_CHARS), "description": "the id in the metadata of the table format"}
)
LEVELS = {
    "type": "array",
    "items": {},
    "minItems": 1,
    "maxItems": MAX_PARTITION_LEVELS,
    "description": "one JSON value for each level",
}
PARTITION = _or_null(
    {**LEVELS, "description": "one JSON value for each level; null without a partition"}
)
TAGS = {
    "type": "object",
    "maxProperties": MAX_TAGS,
    "propertyNames": _text(MAX_TAG_NAME_CHARS),
    "additionalProperties": {
        "type": "string",
        "maxLength": MAX_TAG_VALUE_CHARS,
        "pattern": _WITHOUT_NUL,
    },
    "default": {},
}
TABLE = {
    "anyOf": [
        {**NAME, "description": f"a table of the cluster {DEFAULT_CLUSTER}"},
        {
            "type": "object",
            "properties": {"cluster": {**NAME, "default": DEFAULT_CLUSTER}, "table": NAME},
            "required": ["table"],
            "additionalProperties": False,
        },
    ]
}
_FIELDS: dict[str, Any] = {
    "table": {**NAME, "examples": ["shop.orders"]},
    "partition": PARTITION,
    "snapshot_id": _SNAPSHOT,
    "snapshot_ts": _or_null({**_LONG, "description": "milliseconds since 1970"}),
    "prev_snapshot_id": _SNAPSHOT,
    "table_format": {"type": "string", "enum": [str(member) for member in TableFormat]},
    "operation_type": {
        "type": "string",
        "enum": [str(member) for member in OperationType],
        "default": str(OperationType.UPDATE),
    },
    "tags": TAGS,
    "cluster": {**NAME, "default": DEFAULT_CLUSTER},
    "event_ts": {**_LONG, "description": "the time of registration, in milliseconds since 1970"},
    "seq": {**_LONG, "description": "its position in the order in which watermarks pass events"},
}
_DESCRIPTION = (
    f"A data-change event. snapshot_id may be null for {TableFormat.HIVE} only, "
    "and is never its own prev_snapshot_id."
)

EVENT = {
    "type": "object",
    "description": _DESCRIPTION,
    "properties": {name: _FIELDS[name] for name in FIELDS if name not in GIVEN_AT_REGISTRATION},
    "required": ["table", "table_format"],
    "additionalProperties": False,
}
REGISTERED_EVENT = {
    "type": "object",
    "description": _DESCRIPTION,
    "properties": {name: _FIELDS[name] for name in FIELDS},
    "required": list(FIELDS),
    "additionalProperties": False,
}
