"""Columns as CREATE TABLE has them, without Spark."""

import pyarrow as pa
import pytest

from opal_lake.definition.sql_schema import arrow_of_sql
from opal_lake.errors import InvalidInputError


def test_columns_have_names_and_types() -> None:
    text = (
        "id BIGINT, `total sum` DECIMAL(10, 2), n int, op VARCHAR, at TIMESTAMP, "
        "local TIMESTAMP_NTZ, price DECIMAL, weight: double"
    )
    assert arrow_of_sql(text) == pa.schema(
        [
            ("id", pa.int64()),
            ("total sum", pa.decimal128(10, 2)),
            ("n", pa.int32()),
            ("op", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("price", pa.decimal128(10, 0)),
            ("weight", pa.float64()),
        ]
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("id", "'id' is not a column"),
        ("id BIGINT NOT NULL", "'BIGINT NOT NULL' is not a type"),
        ("tags ARRAY<STRING", "'ARRAY<STRING' is not a type"),
        ("tags ARRAY<STRING>>, id INT", "is not a type"),
        ("id BIGINT, id INT", "two columns are called 'id'"),
        ("id NOTHING", "'NOTHING' is not a type"),
        ("id BIGINT(3)", "is not a type"),
        ("id DECIMAL(10.2)", r"column 'id': 'DECIMAL\(10.2\)' is not a type"),
        ("id INT!", "'INT!' is not a type"),
        ("id INT;", "'INT;' is not a type"),
        ("id DECIMAL(10, /* digits */ 2)", "is not a type"),
        ("", "is not a column"),
        ("id BIGINT, op VARCHAR(3)", r"VARCHAR\(3\) is not a type of a table, whose texts have no"),
        ("op char ( 2 )", r"CHAR \( 2 \) is not a type of a table"),
        ("ops ARRAY<VARCHAR(3)>", "write STRING"),
    ],
)
def test_columns_that_a_table_created_by_sql_cannot_have_are_refused(
    text: str, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        arrow_of_sql(text)


def test_names_that_look_like_types_with_lengths_are_names() -> None:
    assert arrow_of_sql("`a varchar(3)` INT").names == ["a varchar(3)"]


@pytest.mark.parametrize(
    "text, names",
    [
        ("`last, first` STRING, id BIGINT", ["last, first", "id"]),
        ("`a(b` INT, `c)d` INT", ["a(b", "c)d"]),
        ("`tick``s` INT, id INT", ["tick`s", "id"]),
        ("price DECIMAL(10, 2), `x,y` DECIMAL(5,1)", ["price", "x,y"]),
    ],
)
def test_a_quoted_name_may_hold_commas_and_brackets(text: str, names: list[str]) -> None:
    assert arrow_of_sql(text).names == names


def test_types_may_nest() -> None:
    text = (
        "id BIGINT, place STRUCT<city: STRING, `a, b` MAP<STRING, DECIMAL(5, 1)>>, tags ARRAY<INT>"
    )
    assert arrow_of_sql(text) == pa.schema(
        [
            ("id", pa.int64()),
            (
                "place",
                pa.struct(
                    [("city", pa.string()), ("a, b", pa.map_(pa.string(), pa.decimal128(5, 1)))]
                ),
            ),
            ("tags", pa.list_(pa.field("element", pa.int32()))),
        ]
    )
