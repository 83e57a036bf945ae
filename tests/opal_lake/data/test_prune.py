import math
import operator
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opal_lake.data.bounds import Bounds, bounds_of
from opal_lake.data.columns import to_physical
from opal_lake.data.condition_bounds import predicate_of
from opal_lake.data.prune import (
    And,
    Compare,
    In,
    IsNull,
    Or,
    Predicate,
    Unknown,
    may_match,
)
from opal_lake.definition.conditions.condition import condition
from opal_lake.definition.conditions.printer import literal_text
from opal_lake.definition.table_spec import TableSpec
from tests.opal_lake.shapes import ZONED, spec_of

SMALL = st.integers(-4, 4)
TEXTS = st.one_of(
    st.text("ab\U0010ffff", max_size=3),
    st.builds(
        lambda start, end: start * 31 + end,
        st.sampled_from("ab\U0010ffff"),
        st.text("ab\uffff", max_size=3),
    ),
)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "k": (pa.string(), TEXTS),
    "d": (pa.int64(), SMALL),
    "f": (
        pa.float64(),
        st.sampled_from([-1.5, -0.0, 0.0, 0.1, 2.0, math.nan, math.inf, -math.inf]),
    ),
    "dec": (pa.decimal128(38, 2), SMALL.map(lambda n: Decimal(n) / 4)),
    "bin": (pa.binary(), st.binary(max_size=2) | st.binary(min_size=31, max_size=34)),
    "b": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), SMALL.map(lambda n: date.fromordinal(719163 + n))),
    "t": (ZONED, SMALL.map(lambda n: datetime(2024, 1, 5 + n, tzinfo=UTC))),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
SPEC: TableSpec = spec_of(SCHEMA.empty_table(), "parquet")
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in COLUMNS.items()}),
    min_size=1,
    max_size=3,
)
Test = Callable[[dict[str, Any]], bool]


def sort_key(value: Any) -> Any:
    """Spark's order: NaN is the greatest float and equals itself, and zeros are equal."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    return value.encode() if isinstance(value, str) else value


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _bound(value: Any) -> Any:
    """Return a value in the form of bounds."""
    match value:
        case bytes():
            return value.hex()
        case datetime():
            return (value.replace(tzinfo=None) - datetime(1970, 1, 1)) // timedelta(microseconds=1)
        case date():
            return value.toordinal() - date(1970, 1, 1).toordinal()
    return value


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _compared(name: str, op: Any, value: Any) -> tuple[Predicate, Test]:
    def holds(row: dict[str, Any]) -> bool:
        return row[name] is not None and OPERATORS[op](sort_key(row[name]), sort_key(value))

    made = Compare(field_id=SPEC.schema.field(name).id, op=op, value=_bound(value))
    return made if _is_finite(value) else Unknown(), holds


def _listed(name: str, values: list[Any]) -> tuple[Predicate, Test]:
    keys = [sort_key(value) for value in values]
    made = In(field_id=SPEC.schema.field(name).id, values=tuple(map(_bound, values)))
    is_known = all(map(_is_finite, values))
    return (
        made if is_known else Unknown(),
        lambda row: row[name] is not None and sort_key(row[name]) in keys,
    )


def _null(name: str, negated: bool) -> tuple[Predicate, Test]:
    return IsNull(
        field_id=SPEC.schema.field(name).id, negated=negated
    ), lambda row: (row[name] is not None) == negated


def _prefixed(prefix: str, negated: bool) -> tuple[Predicate, Test]:
    text = f"startswith(k, {literal_text(prefix)})"
    if negated:
        text = f"NOT {text}"
    made = predicate_of(condition(text, SPEC.schema.fields).typed)
    return made, lambda row: row["k"] is not None and row["k"].startswith(prefix) != negated


def _joined(kind: Any, parts: list[tuple[Predicate, Test]]) -> tuple[Predicate, Test]:
    every = all if kind is And else any
    return kind(parts=tuple(made for made, _ in parts)), lambda row: every(
        test(row) for _, test in parts
    )


NAMES = st.sampled_from(list(COLUMNS))
LEAVES = st.one_of(
    NAMES.flatmap(
        lambda name: st.builds(
            _compared, st.just(name), st.sampled_from(list(OPERATORS)), COLUMNS[name][1]
        )
    ),
    NAMES.flatmap(
        lambda name: st.builds(_listed, st.just(name), st.lists(COLUMNS[name][1], max_size=3))
    ),
    st.builds(_null, NAMES, st.booleans()),
    st.builds(_prefixed, TEXTS, st.booleans()),
)
PREDICATES = st.recursive(
    LEAVES,
    lambda inner: st.builds(_joined, st.sampled_from([And, Or]), st.lists(inner, max_size=3)),
    max_leaves=6,
)


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "file_format,examples", [("parquet", 400), ("parquet", 1500), ("orc", 1500)]
)
def test_no_file_with_a_matching_row_is_dropped(file_format: str, examples: int) -> None:
    """The fast tests have fewer examples than the slow ones."""
    spec = spec_of(SCHEMA.empty_table(), file_format)
    matched = 0

    @given(rows=ROWS, predicate=PREDICATES)
    @settings(max_examples=examples, deadline=None)
    def run(rows: list[dict[str, Any]], predicate: tuple[Predicate, Test]) -> None:
        nonlocal matched
        made, matches = predicate
        if not any(matches(row) for row in rows):
            return
        matched += 1
        bounds = bounds_of(to_physical(pa.Table.from_pylist(rows, schema=SCHEMA), spec), spec)
        assert may_match(made, bounds, len(rows))
        assert may_match(made, {}, len(rows))
        assert may_match(
            made,
            {
                number: Bounds(low=None, high=None, nulls=known.nulls)
                for number, known in bounds.items()
            },
            len(rows),
        )

    run()
    assert matched >= examples / 8


KNOWN = {
    1: Bounds(low=10, high=20, nulls=0),
    2: Bounds(low=None, high=None, nulls=5),
    3: Bounds(low=7, high=7, nulls=2),
}


@pytest.mark.parametrize(
    "predicate, expected",
    [
        (Compare(field_id=1, op="=", value=15), True),
        (Compare(field_id=1, op="=", value=21), False),
        (Compare(field_id=1, op="<", value=10), False),
        (Compare(field_id=1, op="<=", value=10), True),
        (Compare(field_id=1, op=">", value=20), False),
        (Compare(field_id=1, op=">=", value=20), True),
        (Compare(field_id=1, op="!=", value=15), True),
        (Compare(field_id=3, op="!=", value=7), False),
        (Compare(field_id=2, op="!=", value=7), False),
        (Compare(field_id=9, op="=", value=7), True),
        (In(field_id=1, values=(1, 30)), False),
        (In(field_id=1, values=(1, 12)), True),
        (IsNull(field_id=1), False),
        (IsNull(field_id=2), True),
        (IsNull(field_id=2, negated=True), False),
        (IsNull(field_id=3, negated=True), True),
        (Unknown(), True),
        (And(parts=(Unknown(), IsNull(field_id=1))), False),
        (Or(parts=(Unknown(), IsNull(field_id=1))), True),
        (Or(parts=()), False),
        (And(parts=()), True),
    ],
)
def test_bounds_decide_whether_a_file_may_match(predicate: Predicate, expected: bool) -> None:
    assert may_match(predicate, KNOWN, 5) is expected
    assert not may_match(predicate, KNOWN, 0)


def test_decimals_compare_as_numbers_not_as_texts() -> None:
    bounds = {1: Bounds(low="9.00", high="10.00", nulls=0)}
    assert may_match(Compare(field_id=1, op="=", value=Decimal("9.5")), bounds, 1)
    assert not may_match(Compare(field_id=1, op=">", value=Decimal(10)), bounds, 1)
