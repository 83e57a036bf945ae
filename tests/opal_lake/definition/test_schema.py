import pyarrow as pa
import pytest

from opal_lake.definition.schema import (
    HIDDEN_IDS,
    MAX_FIELD_ID,
    Schema,
    check_names,
    extended,
    schema_from_json,
    schema_of_arrow,
    schema_to_json,
    type_name,
)
from opal_lake.errors import InvalidInputError

NESTED = pa.struct(
    [
        ("street no", pa.int16()),
        ("a`b", pa.list_(pa.string())),
        ("sums", pa.map_(pa.string(), pa.decimal128(10, 2))),
    ]
)
NAMES: list[tuple[pa.DataType, str]] = [
    (pa.int8(), "TINYINT"),
    (pa.int32(), "INT"),
    (pa.int64(), "BIGINT"),
    (pa.float64(), "DOUBLE"),
    (pa.large_string(), "STRING"),
    (pa.timestamp("us", tz="Europe/Berlin"), "TIMESTAMP"),
    (pa.timestamp("us"), "TIMESTAMP_NTZ"),
    (
        NESTED,
        "STRUCT<`street no`: SMALLINT, `a``b`: ARRAY<STRING>, sums: MAP<STRING, DECIMAL(10,2)>>",
    ),
]


@pytest.mark.parametrize("kind, name", NAMES)
def test_types_of_arrow_and_of_tables_are_named_as_schemas_write_them(
    kind: pa.DataType, name: str
) -> None:
    column = schema_of_arrow(pa.schema([("a", kind)])).fields[0]
    assert type_name(column.type) == type_name(kind) == name


def test_types_that_no_column_has_keep_the_names_of_arrow() -> None:
    assert type_name(pa.uint64()) == "uint64"
    assert type_name(pa.list_(pa.time64("us"))) == "ARRAY<time64[us]>"
    # a microsecond is what TIMESTAMP holds, so the unit is the news
    assert type_name(pa.timestamp("ns", tz="UTC")) == "timestamp[ns, tz=UTC]"


def test_name_of_two_columns_is_refused() -> None:
    name = "at"
    with pytest.raises(InvalidInputError, match="two columns are called 'at'; rename one"):
        check_names([name, "id", name])


def test_no_column_has_the_field_id_of_a_hidden_one() -> None:
    data = schema_to_json(schema_of_arrow(pa.schema([("a", pa.int64())])))
    data["fields"][0]["id"] = data["last_id"] = MAX_FIELD_ID
    assert schema_from_json(data).last_id == MAX_FIELD_ID
    for number in HIDDEN_IDS.values():
        data["fields"][0]["id"] = number
        with pytest.raises(
            ValueError, match=f"the field id {number}, and the greatest allowed id is"
        ):
            schema_from_json(data)


def test_adding_a_column_fails_when_all_field_ids_are_used() -> None:
    old = schema_of_arrow(pa.schema([("a", pa.int64())]))
    standing = Schema(fields=old.fields, last_id=MAX_FIELD_ID - 1)
    full = extended(standing, pa.schema([("b", pa.int64())]))
    assert (full.fields[-1].id, full.last_id) == (MAX_FIELD_ID, MAX_FIELD_ID)
    for schema, more in (
        (full, pa.schema([("c", pa.int64())])),
        (standing, pa.schema([("c", pa.list_(pa.int64()))])),
    ):
        with pytest.raises(InvalidInputError, match="the table has used all field ids"):
            extended(schema, more)
