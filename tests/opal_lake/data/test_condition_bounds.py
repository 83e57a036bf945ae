"""Pruning by conditions: a file is left out only if no row of it can match."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.data.bounds import Bounds, bounds_of
from opal_lake.data.columns import to_physical
from opal_lake.data.condition_bounds import predicate_of
from opal_lake.data.prune import And, Compare, In, IsNull, Or, Predicate, Unknown, may_match
from opal_lake.definition.conditions.condition import Condition, condition
from opal_lake.definition.conditions.printer import text_of
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from tests.opal_lake.definition.conditions.drawn import SCHEMA, Drawing, drawn_rows

SPEC = plan_spec(SCHEMA, TableLayout(keys=["num"], delta="big"))
FIELDS = SPEC.schema.fields
IDS = {field.name: field.id for field in FIELDS}
UNKNOWN = Unknown()


def parsed(text: str) -> Predicate:
    return predicate_of(condition(text, FIELDS).typed)


def test(name: str, op: Any, value: Any) -> Compare:
    return Compare(field_id=IDS[name], op=op, value=value)


test.__test__ = False  # type: ignore[attr-defined]  # a helper, for pytest

MICROS = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()) * 1_000_000
TXT = IDS["txt"]


@pytest.mark.parametrize(
    "text,predicate",
    [
        ("txt = 'a'", test("txt", "=", "a")),
        ("5 < big", test("big", ">", 5)),
        ("TINY <> 300", test("tiny", "!=", 300)),
        ("NOT big >= 5", test("big", "<", 5)),
        ("big > 1.5", test("big", ">", Decimal("1.5"))),
        ("dec5 = 1", test("dec5", "=", Decimal(1))),
        ("dec5 < 1.005", test("dec5", "<", Decimal("1.005"))),
        ("single = 0.1", test("single", "=", 0.1)),
        ("dbl <= 3", test("dbl", "<=", 3.0)),
        ("raw = X'1F00'", test("raw", "=", "1f00")),
        ("day = DATE '1970-01-02'", test("day", "=", 1)),
        ("ts >= TIMESTAMP '2026-11-01'", test("ts", ">=", MICROS)),
        ("ts >= TIMESTAMP '2026-11-01 02:00:00+02:00'", test("ts", ">=", MICROS)),
        ("ntz < TIMESTAMP_NTZ '2026-11-01'", test("ntz", "<", MICROS)),
        ("flag", test("flag", "=", True)),
        ("NOT flag", test("flag", "=", False)),
        ("flag IS FALSE", test("flag", "=", False)),
        ("flag = FALSE", test("flag", "=", False)),
        ("big IN (1, 2)", In(field_id=IDS["big"], values=(1, 2))),
        ("big NOT IN (1, 2)", And(parts=(test("big", "!=", 1), test("big", "!=", 2)))),
        ("num BETWEEN 1 AND 5", And(parts=(test("num", ">=", 1), test("num", "<=", 5)))),
        ("num NOT BETWEEN 1 AND 5", Or(parts=(test("num", "<", 1), test("num", ">", 5)))),
        ("txt LIKE 'ab%'", And(parts=(test("txt", ">=", "ab"), test("txt", "<", "ac")))),
        ("txt LIKE 'ab_d'", And(parts=(test("txt", ">=", "ab"), test("txt", "<", "ac")))),
        ("txt NOT LIKE 'ab%'", Or(parts=(test("txt", "<", "ab"), test("txt", ">=", "ac")))),
        ("startswith(txt, 'ab')", And(parts=(test("txt", ">=", "ab"), test("txt", "<", "ac")))),
        (r"txt LIKE 'a\_b'", test("txt", "=", "a_b")),
        ("txt IS NULL", IsNull(field_id=TXT)),
        ("NOT txt <=> NULL", IsNull(field_id=TXT, negated=True)),
        ("txt <=> 'a'", test("txt", "=", "a")),
        ("NOT txt <=> 'a'", Or(parts=(test("txt", "!=", "a"), IsNull(field_id=TXT)))),
        ("NOT (big < 1 AND flag)", Or(parts=(test("big", ">=", 1), test("flag", "=", False)))),
        ("true", And(parts=())),
        ("false", Or(parts=())),
        ("big < 1 AND 5 / num > 1", And(parts=(test("big", "<", 1), UNKNOWN))),
    ],
)
def test_condition_becomes_a_predicate_on_bounds(text: str, predicate: Predicate) -> None:
    assert parsed(text) == predicate


@pytest.mark.parametrize(
    "text",
    [
        "big = BIG2",
        "big + 1 = 2",
        "big > 1e3",
        "nested.num = 1",
        "nested.txt IS NULL",
        "upper(txt) = 'A'",
        "txt LIKE '%a'",
        "txt NOT LIKE 'ab_d'",
        "flag IS NOT TRUE",
        "date(ts) = DATE '2026-11-01'",
        "coalesce(big, 1) = 1",
    ],
)
def test_condition_that_bounds_cannot_answer_is_unknown(text: str) -> None:
    assert parsed(text) == UNKNOWN


def test_zeros_of_both_signs_are_one_value_to_bounds() -> None:
    for zero in (-0.0, 0.0):
        rows = pa.Table.from_pylist([{"dbl": zero}], schema=SCHEMA)
        bounds = bounds_of(to_physical(rows, SPEC), SPEC)
        for text in ("dbl = 0", "dbl IN (0, 5)", "dbl >= 0e0", "dbl <= -0e0"):
            assert may_match(parsed(text), bounds, 1)
        assert not may_match(parsed("dbl < 0"), bounds, 1)


def _long(rows: pa.Table) -> pa.Table:
    """Texts and bytes that bounds hold cut off."""
    texts = [value and "a" * 31 + value for value in rows["txt"].to_pylist()]
    data = [value and b"\xff" * 31 + value for value in rows["raw"].to_pylist()]
    longer = {"txt": pa.array(texts, pa.string()), "raw": pa.array(data, pa.binary())}
    for name, column in longer.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _conditions(chance: random.Random, count: int) -> list[Condition]:
    made: list[Condition] = []
    while len(made) < count:
        text = text_of(Drawing(chance).condition(chance.randint(0, 2)))
        try:
            made.append(condition(text, FIELDS))
        except InvalidInputError:  # too many digits, which is tested elsewhere
            continue
    return made


@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_file_with_a_matching_row_is_left_out(count: int) -> None:
    chance = random.Random(count)
    matching = left_out = 0
    for number, made in enumerate(_conditions(chance, count)):
        size = chance.randint(1, 3)
        rows = drawn_rows(chance, size)
        rows = _long(rows) if number % 3 == 0 else rows
        bounds = bounds_of(to_physical(rows, SPEC), SPEC)
        answers = made.answers(rows.combine_chunks().to_batches()[0])
        matches = True in answers.values.to_pylist()
        may = may_match(predicate_of(made.typed), bounds, size)
        wide = {field_id: replace(known, low=None) for field_id, known in bounds.items()}
        assert may or not matches, made.text
        assert may_match(predicate_of(made.typed), wide, size) or not matches, made.text
        assert may_match(predicate_of(made.typed), {}, size) or not matches, made.text
        matching += matches
        left_out += not may
    assert matching > count / 8
    assert left_out > count / 20


def test_bounds_of_one_value_answer_inequality() -> None:
    bounds = {IDS["big"]: Bounds(low=7, high=7, nulls=2)}
    assert not may_match(parsed("big <> 7"), bounds, 5)
    assert may_match(parsed("big <> 8"), bounds, 5)
