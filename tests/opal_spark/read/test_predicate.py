from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from opal_lake.data.bounds import bounds_of
from opal_lake.data.columns import to_physical
from opal_lake.data.prune import And, Compare, In, IsNull, Or, Predicate, Unknown, may_match
from opal_spark.read.predicate import may_list_null, parse_predicate
from tests.opal_lake.shapes import WALL, ZONED, spec_of

SCHEMA = pa.schema(
    [
        *[
            ("k", pa.string()),
            ("d", pa.int64()),
            ("b", pa.bool_()),
            ("tiny", pa.int8()),
            ("f", pa.float32()),
            ("g", pa.float64()),
        ],
        ("bin", pa.binary()),
        ("day", pa.date32()),
        ("t", ZONED),
        ("n", WALL),
        ("dec", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(38, 20)),
        ("we.ird `x", pa.int32()),
        ("s", pa.struct([("a", pa.int32())])),
    ]
)
SPEC = spec_of(SCHEMA.empty_table(), "parquet")
IDS = {name: SPEC.schema.field(name).id for name in SCHEMA.names}
UNKNOWN = Unknown()


def parse(sql: str, zone: str = "America/Los_Angeles") -> Predicate:
    return parse_predicate(sql, SPEC, session_zone=zone)


def test(name: str, op: Any, value: Any) -> Compare:
    return Compare(field_id=IDS[name], op=op, value=value)


test.__test__ = False  # type: ignore[attr-defined]  # a helper, for pytest


def us(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * 1_000_000  # type: ignore[misc]  # mypy takes the parts for the zone


@pytest.mark.parametrize(
    "sql,found",
    [
        ("k = 'a'", test("k", "=", "a")),
        ("K == 'a'", test("k", "=", "a")),
        ("'a' < k", test("k", ">", "a")),
        ("d <> -5", test("d", "!=", -5)),
        ("d >= 5L", test("d", ">=", 5)),
        ("b", test("b", "=", True)),
        ("NOT b", test("b", "=", False)),
        ("b != true", test("b", "!=", True)),
        ("tiny = 2Y", test("tiny", "=", 2)),
        ("tiny = 2.0", test("tiny", "=", 2)),
        ("f > 0.1", test("f", ">", 0.1)),
        ("g = 1e3", test("g", "=", 1000.0)),
        ("g = .5D", test("g", "=", 0.5)),
        ("bin = X'ff0A'", test("bin", "=", "ff0a")),
        ("dec = 1.5", test("dec", "=", Decimal("1.5"))),
        ("`we.ird ``x` = 1", test("we.ird `x", "=", 1)),
        ("day = '1970-01-02'", test("day", "=", 1)),
        ("day = DATE'1970-01-02'", test("day", "=", 1)),
        ("day = cast('1970-01-02' as date)", test("day", "=", 1)),
        ("t = TIMESTAMP'2024-01-01 00:00:00'", test("t", "=", us(2024, 1, 1, 8))),
        ("t = '2024-01-01'", test("t", "=", us(2024, 1, 1, 8))),
        ("t = DATE'2024-01-01'", test("t", "=", us(2024, 1, 1, 8))),
        ("t = TIMESTAMP_NTZ'2024-01-01 00:00:00'", test("t", "=", us(2024, 1, 1, 8))),
        ("t = TIMESTAMP'2024-01-01 00:00:00.000001Z'", test("t", "=", us(2024, 1, 1) + 1)),
        ("t = TIMESTAMP'1600-01-01 00:00:00+05:30'", test("t", "=", us(1599, 12, 31, 18, 30))),
        ("t = TIMESTAMP'2024-11-03 01:30:00'", test("t", "=", us(2024, 11, 3, 8, 30))),
        ("t = TIMESTAMP'2024-03-10 02:30:00'", test("t", "=", us(2024, 3, 10, 10, 30))),
        ("n = TIMESTAMP_NTZ'1582-10-10 00:00:00.5'", test("n", "=", us(1582, 10, 10) + 500_000)),
        ("n = DATE'2024-01-01'", test("n", "=", us(2024, 1, 1))),
        ("k LIKE 'ab'", test("k", "=", "ab")),
        ("k LIKE 'ab%'", And(parts=(test("k", ">=", "ab"), test("k", "<", "ac")))),
        ("k NOT LIKE 'ab%'", Or(parts=(test("k", "<", "ab"), test("k", ">=", "ac")))),
        ("startswith(k, 'ab')", And(parts=(test("k", ">=", "ab"), test("k", "<", "ac")))),
        ("d BETWEEN 1 AND 2", And(parts=(test("d", ">=", 1), test("d", "<=", 2)))),
        ("d NOT BETWEEN 1 AND 2", Or(parts=(test("d", "<", 1), test("d", ">", 2)))),
        ("d IN (1, NULL, 2)", In(field_id=IDS["d"], values=(1, 2))),
        ("d NOT IN (1, 2)", And(parts=(test("d", "!=", 1), test("d", "!=", 2)))),
        ("s IS NULL", IsNull(field_id=IDS["s"])),
        ("k IS NOT NULL", IsNull(field_id=IDS["k"], negated=True)),
        ("NOT k IS NOT NULL", IsNull(field_id=IDS["k"])),
        ("d <=> 5", test("d", "=", 5)),
        ("NULL <=> d", IsNull(field_id=IDS["d"])),
        ("NOT d <=> 5", Or(parts=(test("d", "!=", 5), IsNull(field_id=IDS["d"])))),
        (
            "NOT (d < 1 OR d > 2 OR rand() < 1)",
            And(parts=(test("d", ">=", 1), test("d", "<=", 2), UNKNOWN)),
        ),
        ("NOT (d < 1 AND k = 'a')", Or(parts=(test("d", ">=", 1), test("k", "!=", "a")))),
        ("d = 1 -- ; k = 'a'", test("d", "=", 1)),
        ("true", And(parts=())),
        ("NOT true", Or(parts=())),
    ],
)
def test_what_is_understood(sql: str, found: Predicate) -> None:
    assert parse(sql) == found


@pytest.mark.parametrize(
    "sql",
    [
        "nobody = 1",
        "s.a = 1",
        "d = d",
        "d + 1 = 2",
        "d = '5'",
        "d = NULL",
        "d = 1.5",
        "d = 5 IS NULL",
        "tiny = 128",
        "tiny = cast(300 as tinyint)",
        "d = cast(5.7 as bigint)",
        "d BETWEEN SYMMETRIC 2 AND 1",
        "d IN (1, 'x')",
        "d IN (SELECT 1)",
        "d NOT IN (1, NULL)",
        "f = 16777217",
        "wide = 5",
        "dec = 1.505",
        "dec = 1e0",
        "k = 5",
        "k = 'a\\n'",
        'k = "a"',
        "k = 'a' 'b'",
        "k = 'it''s'",
        "k = DATE'2024-01-01'",
        "k LIKE 'a_b'",
        "k LIKE '%b'",
        "k LIKE 'a%' ESCAPE '/'",
        "k ILIKE 'a%'",
        "k LIKE ANY ('a%', 'b%')",
        "day = '2024-2-1'",
        "day = '2024-02-30'",
        "day = TIMESTAMP'2024-01-01 00:00:00'",
        "t = '2024-11-03 01:30:00'",
        "t = '2024-03-10 02:30:00'",
        "t = TIMESTAMP'1900-01-01 00:00:00'",
        "t IN ('2024-01-01')",
        "n = TIMESTAMP'2024-01-01 00:00:00'",
        "n = '2024-01-01 00:00:00Z'",
        "cast(d as int) = 5",
        "d = " + "(" * 3000 + "1" + ")" * 3000,
    ],
)
def test_what_is_left_to_spark(sql: str) -> None:
    assert parse(sql) == UNKNOWN


@pytest.mark.parametrize(
    "zone,hour", [("UTC", 0), ("Etc/UTC", 0), ("+05:30", -5.5), ("UTC-08:00", 8), ("GMT+01:00", -1)]
)
def test_fixed_zones_hold_for_all_times(zone: str, hour: float) -> None:
    assert parse("t = TIMESTAMP'1600-01-02 00:00:00'", zone) == test(
        "t", "=", us(1600, 1, 2) + int(hour * 3_600_000_000)
    )


@pytest.mark.parametrize("zone", ["EST", "PST", "Nowhere/None", "+99:00", "../x/y", ""])
def test_zones_that_are_not_certain_prune_nothing(zone: str) -> None:
    assert parse("t = TIMESTAMP'2024-01-01 00:00:00'", zone) == UNKNOWN


def test_long_chains_are_flat() -> None:
    found = parse(" OR ".join(f"d = {number}" for number in range(3000)))
    assert isinstance(found, Or)
    assert len(found.parts) == 3000


@pytest.mark.parametrize(
    "sql",
    [
        "d = ",
        "d = 1\n AND AND",
        "k = 'x",
        "d = 1 LIMIT 2",
        "",
        "   ",
        "d = 1; d = 2",
        "-- nothing",
        "d !> 3",
        "d >>> 1 = 2",
    ],
)
def test_what_only_spark_can_judge_prunes_nothing(sql: str) -> None:
    assert parse(sql) == UNKNOWN


COLUMNS: dict[str, tuple[list[Any], list[str]]] = {
    "k": (["a", "ab", "b", "B", ""], ["'a'", "'ab'", "''", "'b%'", "5"]),
    "d": ([-1, 0, 1, 5, 1 << 53], ["0", "1L", "-1", "1.0", "0.5", "'1'", "9007199254740993"]),
    "b": ([True, False], ["true", "false", "1", "'true'"]),
    "f": ([0.1, -0.0, 1.5, float("nan"), 16777216.0], ["0.1", "0", "1.5D", "16777217", "cast('NaN' as float)"]),
    "dec": ([Decimal("1.50"), Decimal(-1)], ["1.5", "1.505", "-1", "1e0", "1.50BD"]),
    "wide": ([Decimal("5.00000000000000000001"), Decimal(5)], ["5", "5.0", "5L", "cast(5 as bigint)"]),
    "day": (["2024-01-01", "1582-10-10"], ["'2024-01-01'", "DATE'1582-10-10'", "TIMESTAMP'2024-01-01 00:00:00'"]),
    "t": (["2024-11-03 08:30:00", "2024-11-03 09:30:00", "2024-03-10 10:30:00"], [
        "'2024-11-03 01:30:00'", "TIMESTAMP'2024-11-03 01:30:00'", "TIMESTAMP'2024-03-10 02:30:00'", "TIMESTAMP_NTZ'2024-03-10 03:30:00'",
        "DATE'2024-11-03'"]),
    "n": (["2024-03-10 02:30:00", "2024-03-10 03:30:00"], ["'2024-03-10 02:30:00'",
        "TIMESTAMP'2024-03-10 02:30:00'", "TIMESTAMP_NTZ'2024-03-10 03:30:00'", "DATE'2024-03-10'"]),
}  # fmt: skip


@st.composite
def filters(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(list(COLUMNS)))
    literal = st.sampled_from([*COLUMNS[name][1], "NULL"])
    form = draw(
        st.sampled_from(
            [
                "{c} {op} {a}",
                "{a} {op} {c}",
                "{c} BETWEEN {a} AND {b}",
                "{c} IN ({a}, {b})",
                "{c} IS NULL",
                "{c} <=> {a}",
            ]
        )
    )
    if name == "k":
        form = draw(st.sampled_from([form, "{c} LIKE {a}", "startswith({c}, {a})"]))
    op = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    text = form.format(c=name, op=op, a=draw(literal), b=draw(literal))
    return f"NOT ({text})" if draw(st.booleans()) else text


CONDITIONS = st.recursive(
    filters(),
    lambda inner: st.builds(
        lambda a, op, b: f"({a}) {op} ({b})", inner, st.sampled_from(["AND", "OR"]), inner
    ),
    max_leaves=3,
)
ROWS = st.fixed_dictionaries(
    {name: st.none() | st.sampled_from(values) for name, (values, _) in COLUMNS.items()}
)


@pytest.mark.slow_but_one
@pytest.mark.spark
@pytest.mark.parametrize("ansi", ["true", "false"])
@given(condition=CONDITIONS, row=ROWS)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_spark_finds_no_row_in_a_file_that_is_dropped(
    spark: SparkSession, ansi: str, condition: str, row: dict[str, Any]
) -> None:
    """Every row alone in a file, in Los Angeles: the sharpest bounds there are."""
    table = pa.table({name: _column(value, SCHEMA.field(name).type) for name, value in row.items()})
    spec = spec_of(table, "parquet")
    bounds = bounds_of(to_physical(table, spec), spec)
    if may_match(parse_predicate(condition, spec, session_zone="America/Los_Angeles"), bounds, 1):
        return
    changed = {"spark.sql.session.timeZone": "America/Los_Angeles", "spark.sql.ansi.enabled": ansi}
    try:
        for name, value in changed.items():
            spark.conf.set(name, value)
        assert _matches(spark, table, condition) == 0, condition
    finally:
        for name in changed:
            spark.conf.unset(name)


@pytest.mark.spark
def test_what_the_check_against_spark_rests_on(spark: SparkSession) -> None:
    row = {name: values[0] for name, (values, _) in COLUMNS.items()}
    table = pa.table({name: _column(value, SCHEMA.field(name).type) for name, value in row.items()})
    assert (
        _matches(
            spark,
            table,
            "k = 'a' AND d = -1 AND b AND dec = 1.5 AND day = '2024-01-01' AND n < '2024-03-10 03:00:00'",
        )
        == 1
    )


def _column(value: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(value, str) and pa.types.is_timestamp(kind):
        return pa.array([value]).cast(pa.timestamp("us")).cast(kind)
    return pa.array([value]).cast(kind)


def _matches(spark: SparkSession, table: pa.Table, condition: str) -> int:
    try:
        return spark.createDataFrame(table).where(condition).count()
    except Exception:  # noqa: BLE001 - types that Spark does not compare, or a text that it cannot cast: no answer, so none is missing
        return 0


@pytest.mark.parametrize(
    "sql, may",
    [
        ("a IN (1, 2, NULL)", True),
        ("a NOT IN (-1, 'x', (3), 5L, X'00', true)", False),
        ("a IN (1, CAST(NULL AS INT))", True),
        ("a IN (1, nullif(2, 2))", True),
        ("a = 1 AND (b in (1, null) OR c IS NULL)", True),
        ("a IN (1, b)", True),
        ("a IS NULL OR inner = 1", False),
        ("a IN (SELECT x FROM y)", False),
        ("a IN (1, CAST('x' AS INT))", True),
        ("a IN (1, 2", True),
    ],
)
def test_lists_that_might_hold_a_null_are_known(sql: str, may: bool) -> None:
    assert may_list_null(sql) == may
