"""Types of JSON Schema."""

import json
from typing import Any

import pyarrow as pa
import pytest

from opal_stream.formats.schemas.json_types import json_schema_columns


@pytest.mark.parametrize(
    "schema, kind",
    [
        ({"type": "integer"}, pa.int64()),
        ({"type": ["null", "number"]}, pa.float64()),
        ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, pa.bool_()),
        ({"type": "string", "format": "date-time"}, pa.timestamp("us", "UTC")),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "array", "items": {"type": "string", "format": "date"}}, pa.list_(pa.string())),
        ({"$ref": "#/$defs/size"}, pa.struct([("w", pa.int64())])),
        ({"$ref": "#/$defs/itself"}, pa.null()),
        ({"type": "object"}, pa.null()),
        ({"type": ["string", "integer"]}, pa.null()),
        (True, pa.null()),
    ],
)
def test_types_of_json_schema_become_column_types(schema: Any, kind: pa.DataType) -> None:
    parts = {
        "size": {"type": "object", "properties": {"w": {"type": "integer"}}},
        "itself": {"$ref": "#/$defs/itself"},
    }
    assert json_schema_columns(
        json.dumps({"type": "object", "properties": {"x": schema}, "$defs": parts})
    ) == {"x": kind}


def test_columns_of_a_change_event_are_those_of_its_row() -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}}}
    event = {
        "type": "object",
        "properties": {"after": {"oneOf": [{"type": "null"}, row]}, "op": {"type": "string"}},
    }
    assert json_schema_columns(json.dumps(event), debezium=True) == {"id": pa.int64()}
