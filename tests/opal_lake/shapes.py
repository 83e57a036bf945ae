"""Rows of every type, nested to any depth.

They have nulls at every level, and are cut out of larger arrays.
"""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from opal_lake.definition.schema import OFFSET, SEGMENT
from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec

ZONED, WALL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
MOMENTS = [
    datetime(1, 1, 1),
    datetime(1582, 10, 4, 23, 59, 59, 999_999),
    datetime(1582, 10, 10, 12),
    datetime(1900, 1, 1, 0, 0, 0, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(2024, 3, 10, 2, 30),  # in the gap of Los Angeles
    datetime(2024, 3, 10, 10, 30),
    datetime(2024, 11, 3, 1, 30),  # twice in Los Angeles
    datetime(2024, 11, 3, 9, 30),
    datetime(9999, 12, 30, 12, 0, 0, 999_999),
]
DAYS = sorted({moment.date() for moment in MOMENTS} | {date(1582, 10, 15), date(9999, 12, 31)})
NAMES = ["a", "B", "a.b", "x y", "`q`", "it's", '"', "名前", "ключ", "_a", "1", "%"]

_ATOMIC: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(1 << 15), (1 << 15) - 1)),
    (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=40)),
    (pa.binary(), st.binary(max_size=40)),
    (pa.date32(), st.sampled_from(DAYS)),
    (ZONED, st.sampled_from([moment.replace(tzinfo=UTC) for moment in MOMENTS])),
    (WALL, st.sampled_from(MOMENTS)),
    (pa.decimal128(9, 2), st.decimals(-9999999, 9999999, places=2)),
    (pa.decimal128(18, 0), st.integers(-(10**18) + 1, 10**18 - 1).map(Decimal)),
    (
        pa.decimal128(38, 10),
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda whole: Decimal(f"{whole}E-10")),
    ),
]
_KEYS = (pa.int32(), pa.string(), pa.date32(), ZONED, WALL)

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def _list_of(inner: Typed) -> Typed:
    return pa.list_(pa.field("element", inner[0])), st.lists(st.none() | inner[1], max_size=3)


def _struct_of(members: dict[str, Typed]) -> Typed:
    kind = pa.struct([(name, inner[0]) for name, inner in members.items()])
    return kind, st.fixed_dictionaries(
        {name: st.none() | inner[1] for name, inner in members.items()}
    )


def _map_of(pair: tuple[Typed, Typed]) -> Typed:
    (key, keys), (value, values) = pair
    return pa.map_(key, value), st.dictionaries(keys, st.none() | values, max_size=3).map(
        lambda entries: list(entries.items())
    )


_NAME_SETS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique_by=str.casefold)


def _deeper(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    keys = st.sampled_from([typed for typed in _ATOMIC if typed[0] in _KEYS])
    structs = _NAME_SETS.flatmap(lambda names: st.fixed_dictionaries(dict.fromkeys(names, inner)))
    return st.one_of(
        inner.map(_list_of), structs.map(_struct_of), st.tuples(keys, inner).map(_map_of)
    )


TYPED = st.recursive(st.sampled_from(_ATOMIC), _deeper, max_leaves=4)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw a key `k`, a delta `d` and up to four columns of any type, in slices."""
    columns = draw(
        st.dictionaries(st.sampled_from(NAMES), TYPED, max_size=4).filter(
            lambda names: len({n.casefold() for n in names}) == len(names)
        )
    )
    schema = pa.schema(
        [
            ("k", pa.string()),
            ("d", pa.int64()),
            *((name, typed[0]) for name, typed in columns.items()),
        ]
    )
    row = st.fixed_dictionaries(
        {"k": st.text("xyz", max_size=3), "d": st.integers(0, 9)}
        | {name: st.none() | typed[1] for name, typed in columns.items()}
    )
    whole = pa.Table.from_pylist(draw(st.lists(row, max_size=12)), schema=schema)
    cuts = draw(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=3))
    return (
        pa.concat_tables([whole.slice(start, length) for start, length in cuts]) if cuts else whole
    )


def spec_of(table: pa.Table, file_format: str, **layout: Any) -> TableSpec:
    return plan_spec(
        table.schema, TableLayout(keys=["k"], delta="d", file_format=file_format, **layout)
    )


def with_row_ids(table: pa.Table, segment: int = 7 << 32) -> pa.Table:
    rows = table.num_rows
    table = table.append_column(SEGMENT, pa.array([segment] * rows, pa.int64()))
    return table.append_column(OFFSET, pa.array(range(rows), pa.int32()))


def _nested(number: int) -> dict[str, Any]:
    moment, day = MOMENTS[number % len(MOMENTS)], DAYS[number % len(DAYS)]
    zoned = moment.replace(tzinfo=UTC)
    return {
        "it's": zoned,
        "wall": moment,
        "day`": day,
        "名.前": [{"z z": zoned, "w": None}, None, {"z z": None, "w": moment}],
        "by day": [(day, [zoned, None]), (date(2000, 1, 1), None)],
    }


def every_type() -> pa.Table:
    """Return rows of every type, also below a struct, a list and a map.

    Each third row is null throughout.
    """
    inner = pa.struct([("z z", ZONED), ("w", WALL)])
    deep = pa.struct(
        [
            ("it's", ZONED),
            ("wall", WALL),
            ("day`", pa.date32()),
            ("名.前", pa.list_(inner)),
            ("by day", pa.map_(pa.date32(), pa.list_(ZONED))),
        ]
    )
    plain = {f"c.{position}": typed[0] for position, typed in enumerate(_ATOMIC)}
    nested = {
        "s": deep,
        "l": pa.list_(deep),
        "m": pa.map_(ZONED, deep),
        "renamed `s`": pa.struct([("in side", pa.int32())]),
    }
    schema = pa.schema(
        [
            ("k", pa.string()),
            ("d", pa.int64()),
            *plain.items(),
            ("t", ZONED),
            ("n", WALL),
            ("day", pa.date32()),
            *nested.items(),
        ]
    )
    rows = [
        _row(position) if position % 3 else {"k": str(position), "d": position}
        for position in range(36)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def _row(index: int) -> dict[str, Any]:
    moment, deep = MOMENTS[index % len(MOMENTS)], _nested(index)
    zoned, day = moment.replace(tzinfo=UTC), DAYS[index % len(DAYS)]
    values = [
        True,
        index,
        -index,
        index,
        -index,
        0.5,
        -0.0,
        "ä",
        b"\xff",
        day,
        zoned,
        moment,
        Decimal("-1.25"),
        Decimal(index),
        Decimal("1e-10"),
    ]
    return {
        "k": str(index),
        "d": index,
        **{f"c.{number}": value for number, value in enumerate(values)},
        "t": zoned,
        "n": moment,
        "day": day,
        "s": deep,
        "l": [deep, None, deep] if index % 2 else [],
        "m": [(zoned, deep), (datetime(2001, 1, 1, tzinfo=UTC), None)] if index % 2 else [],
        "renamed `s`": {"in side": None if index % 4 == 1 else index},
    }
