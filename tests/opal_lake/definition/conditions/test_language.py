"""What a condition may say, what it means, and what is said about a mistake."""

import random
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.definition.conditions.condition import condition
from opal_lake.definition.conditions.faults import DELETES
from opal_lake.definition.conditions.json_form import from_json, to_json
from opal_lake.definition.conditions.parser import parse
from opal_lake.definition.conditions.printer import text_of
from opal_lake.definition.conditions.tree import MAX_CHARACTERS, Column, Compare, Literal
from opal_lake.definition.schema import schema_of_arrow
from opal_lake.errors import InvalidInputError
from tests.opal_lake.definition.conditions.drawn import SCHEMA, Drawing

FIELDS = schema_of_arrow(SCHEMA).fields
NAN = float("nan")
ROW: dict[str, Any] = {
    "flag": True,
    "other flag": None,
    "tiny": 5,
    "num": -7,
    "big": (1 << 53) + 1,
    "dec5": Decimal("1.50"),
    "dec38": Decimal("0.30000000000000000004"),
    "single": 0.1,
    "dbl": NAN,
    "dbl2": -0.0,
    "txt": "aB😀",
    "we.ird `x": "it's",
    "raw": b"\xff",
    "day": date(2026, 11, 28),
    "ts": datetime(2026, 11, 28, 23, 30, tzinfo=UTC),
    "ntz": datetime(1969, 12, 31, 23, 59),
    "nested": {"num": 3, "txt": None},
}


def answer(text: str, row: dict[str, Any] = ROW) -> bool | None:
    table = pa.Table.from_pylist([row], schema=SCHEMA)
    answers = condition(text, FIELDS).answers(table.to_batches()[0])
    assert answers.failed is None or not answers.failed[0].as_py()
    return answers.values[0].as_py()


TRUE = """
    txt = 'aB😀'  |  txt == 'aB😀'  |  `we.ird ``x` = 'it''s'  |  TXT <> 'x'  |  nested.NUM = 3
    NOT txt = 'x' AND flag OR other flag
    num < 0 AND -num > 6  |  num % 4 = -3  |  abs(num) = 7  |  - -num = -7  |  num + 1 * 2 = -5
    10 - 2 - 3 = tiny  |  tiny / 2 = 2.5  |  7 % 4 = 3  |  tiny IN (1, 5.0, 300)
    tiny BETWEEN 1 AND 5  |  tiny NOT BETWEEN 6 AND 9  |  tiny <=> 5  |  NOT tiny <=> NULL
    big = 9007199254740993  |  big * big = 81129638414606699710187514626049
    big = 9007199254740992e0
    dec5 = 1.5  |  dec5 + 0.05 = 1.55  |  dec5 * 3 = 4.5  |  dec5 % 1 = 0.5  |  dec5 / 4 = 0.375e0
    dec38 <> 0.3  |  dec38 % 0.3 = 0.00000000000000000004
    single <> 0.1  |  single < 0.1000001 AND single > 0.1
    dbl = dbl  |  dbl > 1e308  |  NOT dbl < 5  |  isnan(dbl)  |  dbl2 = 0  |  dbl2 >= 0e0
    dbl2 IN (0)
    txt LIKE 'a%'  |  txt LIKE '__😀'  |  txt LIKE 'aB_'  |  txt NOT LIKE '_😀'  |  txt LIKE '%'
    `we.ird ``x` LIKE 'it!%%' ESCAPE '!' IS FALSE  |  txt NOT LIKE 'A%'
    upper(txt) = 'AB😀'  |  lower('ÄB') = 'Äb'  |  upper('ßı') = 'ßı'  |  trim('  a ') = 'a'
    length(txt) = 3  |  substring(txt, 3) = '😀'  |  substring(txt, 2, 1) = 'B'
    concat(txt, '!') = 'aB😀!'  |  concat(txt, nested.txt) IS NULL
    coalesce(nested.txt, 'x') = 'x'
    startswith(txt, 'a')  |  endswith(txt, '😀')  |  contains(txt, 'B')  |  contains(txt, '')
    'Z' < 'a'  |  'z' < 'ä'  |  raw > X'7F'  |  raw = x'ff'
    day = DATE '2026-11-28'  |  date(ts) = day  |  date(ntz) = DATE '1969-12-31'
    ts = TIMESTAMP '2026-11-28 23:30:00'  |  ts = TIMESTAMP '2026-11-29T00:30:00+01:00'
    ntz = TIMESTAMP_NTZ '1969-12-31 23:59'  |  ts < TIMESTAMP '2026-11-28 23:30:00.000001Z'
    nested.txt IS NULL  |  nested IS NOT NULL  |  other flag IS NOT TRUE  |  flag IS TRUE
    TRUE  |  NOT FALSE  |  1 = 1  |  flag = TRUE
    num <> 0 AND 10 / num < 0  |  num = -7 OR 1 / (num + 7) > 0
    coalesce(tiny, 1 / (num + 7)) = 5
"""
NULL = """
    nested.txt = 'a'  |  NOT nested.txt = 'a'  |  nested.txt LIKE '%'  |  nested.txt IN ('a')
    other flag AND flag  |  NOT other flag  |  other flag OR FALSE  |  small + 1 > 0
"""
FALSE = """
    other flag AND FALSE  |  nested.txt IS NOT NULL  |  nested.txt <=> 'a'  |  isnan(1)
    other flag IS TRUE
    isnan(dbl * 0) AND isnan(small)
"""


def cases(text: str) -> list[str]:
    """Return the conditions of a text, which stand between bars or in lines of their own."""
    lines = text.strip().replace("\n", "  |  ").replace("other flag", "`other flag`")
    return [case.strip() for case in lines.split("  |  ")]


@pytest.mark.parametrize("text", cases(TRUE))
def test_condition_is_true_for_the_row(text: str) -> None:
    assert answer(text) is True
    assert answer(text_of(parse(text))) is True


@pytest.mark.parametrize("text", cases(NULL))
def test_condition_is_null_for_the_row(text: str) -> None:
    assert answer(text) is None


@pytest.mark.parametrize("text", cases(FALSE))
def test_condition_is_false_for_the_row(text: str) -> None:
    assert answer(text) is False


FAULTS = {
    "": (1, "the condition is empty"),
    "txt = ": (7, "expected a column, a literal or a function, found the end"),
    "txt = = 'a'": (7, "found '='"),
    "txt = 'a": (7, "has no end"),
    "txt = 'a' 'b'": (11, "found the text 'b'"),
    "`txt = 1": (1, "has no end"),
    'txt = "a"': (7, "write a text as 'D'"),
    "txt = 'a' -- x": (11, "no comments"),
    "txt = /* x */ 'a'": (7, "no comments"),
    "txt = 'a'; drop": (10, "remove the ;"),
    "txt || 'a' = 'b'": (5, "concat"),
    "größe = 1": (3, "back-quotes"),
    "(txt = 'a'": (11, "for the '(' at column 1"),
    "txt = 'a')": (10, "expected an operator or the end"),
    "num = 5L": (8, "found 'L' in a number"),
    "num = 1e999": (7, "beyond a double"),
    f"num = {'9' * 39}": (7, "more than 38 digits"),
    "num < 1 < 2": (9, "found a second test"),
    "num IN ()": (9, "expected a column"),
    "num IN (1, big)": (12, "literals only"),
    "num IN (1, NULL)": (12, "OR x IS NULL"),
    "num = NULL": (7, "write x IS NULL"),
    "num BETWEEN 1 OR 2": (15, "AND between the ends"),
    "num BETWEEN NULL AND 2": (13, "write x IS NULL"),
    "txt LIKE num": (10, "a text as pattern"),
    "txt LIKE 'a\\b'": (1, "escapes only"),
    "txt LIKE 'a' ESCAPE '%'": (21, "other than % and _"),
    "num LIKE 'a'": (1, "LIKE takes a text"),
    "txt NOT 'a'": (9, "IN, BETWEEN or LIKE"),
    "txt IS 'a'": (8, "NULL, TRUE or FALSE"),
    "CASE WHEN flag THEN TRUE END": (1, "conditions do not have CASE"),
    "txt RLIKE 'a'": (5, "conditions do not have RLIKE"),
    "CAST(txt AS INT) = 1": (1, "do not have the function cast()"),
    "now() > ts": (1, "do not have the function now()"),
    "upper(txt, 1) = 'A'": (1, "write upper(text)"),
    "upper(num) = 'A'": (7, "upper() takes a text"),
    "substring(txt, 0) = 'a'": (1, "at least 1"),
    "substring(txt, num) = 'a'": (1, "whole literals"),
    "coalesce(num, NULL) = 1": (15, "takes no NULL"),
    "date(txt) = day": (6, "date() takes a timestamp"),
    "nope = 1": (1, "no column 'nope'"),
    "nested.nope = 1": (1, "no column 'nope'"),
    "num.x = 1": (1, "not a struct"),
    "nested = 1": (1, "only be tested by IS NULL; name a member of a struct"),
    "txt": (1, "expected something true or false, found column 'txt' of type STRING"),
    "txt AND flag": (1, "expected something true or false"),
    "'abc' > 5": (1, "the STRING 'abc' and the DECIMAL(1,0) 5 are not comparable"),
    "txt = 5": (1, "write a text in quotes"),
    "dbl = 'NaN'": (1, "test for NaN with isnan(the number)"),
    "day = '2026-11-28'": (1, "write the day as DATE '2026-11-28'"),
    "ts > '2026-11-28'": (1, "write the time as TIMESTAMP '2026-11-28 09:30:00', which is in UTC"),
    "ntz > TIMESTAMP '2026-11-28'": (1, "only one has a zone"),
    "ts = day": (1, "compare date(the timestamp)"),
    "flag = 1": (1, "not comparable"),
    "flag < TRUE": (1, "has no order"),
    "raw = 'a'": (1, "X'1F00'"),
    "raw = X'1'": (8, "not hexadecimal"),
    "day = DATE '2026-02-30'": (12, "not a day of the calendar"),
    "day = DATE 'today'": (12, "is not a day"),
    "ts = TIMESTAMP '2026-01-01 25:00:00'": (16, "not a time of a day"),
    "ts = TIMESTAMP 'now'": (16, "is not a time"),
    "ts = TIMESTAMP '2026-01-01 00:00:00+19:00'": (16, "beyond 18 hours"),
    "ntz = TIMESTAMP_NTZ '2026-01-01 00:00:00Z'": (21, "take the zone out"),
    "txt = r'a'": (7, "texts with a type are DATE"),
    "num / 0 = 1": (7, "division by zero"),
    "num + 'a' = 1": (7, "takes numbers"),
    "num + NULL = 1": (7, "makes the result null"),
    "dec38 * dec38 > 1": (7, "may have more than 38 digits"),
    "dec38 + 1 > 1": (7, "may have more than 38 digits"),
    "dec38 > big": (1, "more than 38 digits together"),
    "(" * 51 + "flag" + ")" * 51: (51, "parentheses nest"),
    "NOT " * 101 + "flag": (1, "more than 100 levels"),
    "flag OR " * 2000 + "flag": (10_001, "write at most 10,000"),
    " + ".join(["dbl"] * 200) + " > 1": (1, "more than 100 levels"),
    f"txt LIKE '{'a' * 501}%'": (1, "write at most 500"),
    " + ".join(["1 / num"] * 33) + " > 1": (1, "more than 32 divisions"),
    "1 / (1 / (1 / (1 / (1 / (1 / num))))) > 1": (1, "a divisor holds more than 4 divisions"),
}


@pytest.mark.parametrize("text", FAULTS)
def test_error_shows_a_fault_at_its_position(text: str) -> None:
    column, words = FAULTS[text]
    with pytest.raises(InvalidInputError) as caught:
        condition(text, FIELDS, DELETES)
    message = str(caught.value)
    first, excerpt, caret = message.split("\n")
    assert first.startswith("the delete condition ")
    assert f"has a fault at column {column}: " in first
    assert words in first
    at = len(caret) - 1
    assert excerpt[at : at + 1] == text[column - 1 : column]
    assert len(message) < 1_200


def test_where_may_be_longer_than_a_stored_condition() -> None:
    text = f"num IN ({', '.join(map(str, range(5_000)))})"
    assert answer(text) is False
    with pytest.raises(InvalidInputError, match="write at most 10,000"):
        condition(text, FIELDS, DELETES)


def test_a_fault_in_the_second_line_is_shown_there() -> None:
    with pytest.raises(InvalidInputError, match="line 2, column 7"):
        condition("flag\n AND  = 1", FIELDS)


def test_error_for_unsupported_sql_names_an_alternative() -> None:
    with pytest.raises(InvalidInputError, match="compute it as a column of the source"):
        condition("txt RLIKE 'a'", FIELDS, DELETES)


def test_a_division_by_zero_names_condition_and_row() -> None:
    rows = pa.Table.from_pylist([{"num": 1}, {"num": None}, {"num": 0}], schema=SCHEMA)
    parted = pa.concat_tables([rows.slice(0, 2), rows.slice(2)])
    with pytest.raises(InvalidInputError, match=r"'1 / num > 0' divides by zero in row 2, counted"):
        condition("1 / num > 0", FIELDS).holds(parted)
    guarded = condition("num <> 0 AND 1 / num > 0", FIELDS).holds(parted)
    assert guarded.to_pylist() == [True, False, False]


def test_rows_of_another_type_are_refused() -> None:
    made = condition("num = 1", FIELDS)
    with pytest.raises(InvalidInputError, match="'num' holds BIGINT where the table has INT"):
        made.holds(pa.table({"num": pa.array([1], pa.int64())}))
    with pytest.raises(InvalidInputError, match="0 columns 'num'"):
        made.holds(pa.table({"other": [1]}))
    of_member = condition("nested.num = 1", FIELDS)
    for column in ([{"other": 1}], [5]):
        with pytest.raises(InvalidInputError, match=r"where the table has 'nested\.num'"):
            of_member.holds(pa.table({"nested": column}))
    nanoseconds = pa.array([1], pa.timestamp("ns", "UTC"))
    with pytest.raises(InvalidInputError, match="would lose data"):
        condition("ts IS NULL", FIELDS).holds(pa.table({"ts": nanoseconds}))


@pytest.mark.parametrize(
    "column,kind",
    [
        ("txt", pa.large_string()),
        ("txt", pa.string_view()),
        ("txt", pa.dictionary(pa.int8(), pa.string())),
        ("txt", pa.null()),
        ("ts", pa.timestamp("s", "Asia/Tokyo")),
    ],
)
def test_rows_may_have_any_arrow_form_of_a_type(column: str, kind: pa.DataType) -> None:
    value = None if kind == pa.null() else ROW[column]
    rows = pa.table({column: pa.array([value, None]).cast(kind)})
    made = condition(f"{column} IS NOT NULL AND {column} = {column}", FIELDS)
    assert made.holds(rows).to_pylist() == [value is not None, False]


def test_a_slice_is_read_from_its_begin() -> None:
    rows = pa.table(
        {"dec5": pa.array([Decimal(number) for number in range(9)], pa.decimal128(5, 2))}
    )
    assert condition("dec5 % 3 = 1 AND dec5 / 2 > 1", FIELDS).holds(rows[3:6]).to_pylist() == [
        *[False, True, False]
    ]


def test_empty_rows_have_zero_answers() -> None:
    assert len(condition("1 / num > dbl", FIELDS).holds(SCHEMA.empty_table())) == 0


def test_a_deep_condition_fits_the_stack() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(_frames()) + 700)
    try:
        text = "(" * 50 + "flag" + ")" * 50
        assert answer(f"{text} AND {'NOT ' * 98} flag") is True
    finally:
        sys.setrecursionlimit(limit)


def _frames() -> list[Any]:
    frames, frame = [], sys._getframe()
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def test_random_tree_is_equal_after_text_and_after_json() -> None:
    drawing = Drawing(random.Random(7))
    for _ in range(1_000):
        tree = drawing.condition()
        assert parse(text_of(tree)) == tree
        assert from_json(to_json(tree)) == tree


def test_any_text_is_a_condition_or_a_fault() -> None:
    chance = random.Random(11)
    drawing = Drawing(chance)
    pieces = [
        "(",
        ")",
        "'",
        "`",
        ",",
        ".",
        "NOT ",
        " AND ",
        "1e9",
        "-",
        "%",
        "\\",
        "\0",
        "😀",
        "NULL",
    ]
    understood = 0
    for _ in range(3_000):
        text = text_of(drawing.condition(2))
        for _ in range(chance.randrange(3)):
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chance.choice(pieces) + text[at + chance.randrange(3) :]
        try:
            condition(text, FIELDS)
            understood += 1
        except InvalidInputError as error:
            assert len(str(error).split("\n")) == 3  # noqa: PT017  # most are no faults
    assert 500 < understood < 2_500


def test_trees_are_equal_whatever_their_positions_in_the_text() -> None:
    expected = Compare(op="=", left=Column(path=("a",)), right=Literal(value=1))
    assert parse(" a  = 1") == expected


def _nested(depth: int) -> dict[str, Any]:
    tree: dict[str, Any] = {"column": ["flag"]}
    for _ in range(depth):
        tree = {"not": [tree]}
    return tree


@pytest.mark.parametrize(
    "data",
    [
        *[None, 5, "txt = 1", [], {}, {"column": []}, {"column": [""]}, {"column": [5]}],
        *[{"eval": ["1"]}, {"column": ["a"], "not": []}, {"column": "a"}, {"not": []}],
        {"literal": ["integer", 5]},
        {"literal": ["integer", "1" * 39]},
        {"literal": ["decimal", "1E+1000000"]},
        {"literal": ["decimal", "NaN"]},
        {"literal": ["double", "inf"]},
        {"literal": ["double", "0x1p99999"]},
        {"literal": ["date", "today"]},
        {"literal": [["x"], "today"]},
        {"literal": ["text", "today"]},
        {"literal": ["string", "x" * (MAX_CHARACTERS + 1)]},
        {"compare": ["LIKE", {"column": ["a"]}, {"column": ["a"]}]},
        {"call": ["__import__('os')", {"column": ["a"]}]},
        {"and": [{"column": ["a"]}]},
        {"in": [{"column": ["a"]}, [{"column": ["b"]}], False]},
        {"in": [{"column": ["a"]}, [], False]},
        {"like": [{"column": ["a"]}, "a\\", "\\", False]},
        {"like": [{"column": ["a"]}, "a", "", False]},
        {"is_null": [{"column": ["a"]}, 1]},
        {"or": [{"column": ["a"]}] * 5_001},
        _nested(100),
        _nested(3_000),
    ],
)
def test_json_that_is_not_a_tree_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        from_json(data)
