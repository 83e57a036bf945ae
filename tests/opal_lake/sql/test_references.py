"""Which tables a query reads. `test_oracle` compares them with Spark's plans."""

import pytest

from opal_lake.errors import InvalidInputError
from opal_lake.sql.references import references, with_placeholders
from opal_lake.sql.statements import Changes, Slice, TimestampAsOf, VersionAsOf

READ = [
    ("SELECT * FROM a", "a"),
    ("SELECT * FROM a.b c JOIN d ON c.x = d.x LEFT JOIN e USING (x), f", "a.b d e f"),
    ("SELECT * FROM a WHERE x IN (SELECT y FROM b WHERE EXISTS (SELECT 1 FROM c))", "a b c"),
    ("SELECT (SELECT max(x) FROM b) FROM a", "b a"),
    ("WITH a AS (SELECT * FROM x), b(c) AS (SELECT * FROM a) SELECT * FROM b, s.a, A", "x s.a"),
    ("WITH a AS (SELECT * FROM a) SELECT * FROM a", "a"),
    ("WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n FROM a) SELECT * FROM a", ""),
    ("SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) JOIN a", "a"),
    ("SELECT extract(YEAR FROM d), trim(BOTH FROM s), substring(s FROM 2) FROM a", "a"),
    ("SELECT overlay(s PLACING 'x' FROM 3 FOR 1) FROM a", "a"),
    ("SELECT a IS DISTINCT FROM b, a IS NOT DISTINCT FROM b FROM c", "c"),
    ("SELECT from, a.from, x AS from FROM t", "t"),
    ("SELECT a offset FROM t", "t"),
    ("SELECT count(*), t.* FROM t", "t"),
    ("SELECT * EXCEPT (a) FROM t", "t"),
    ("SELECT 1 FROM a EXCEPT SELECT 2 FROM b", "a b"),
    ("(SELECT 1 FROM a) UNION ALL (SELECT 2 FROM b) INTERSECT SELECT 3 FROM c", "a b c"),
    ("SELECT * FROM ((a JOIN b) JOIN (SELECT 1) ON true), (c)", "a b c"),
    ("SELECT * FROM range(10), explode(array(1)) AS x, a", "a"),
    ("SELECT * FROM f(TABLE(a), TABLE b, x => TABLE (SELECT * FROM c))", "a b c"),
    ("SELECT * FROM a, LATERAL (SELECT * FROM b WHERE a.x = b.x), LATERAL f(a.x)", "a b"),
    ("SELECT * FROM a LATERAL VIEW OUTER explode(x) y AS k, v WHERE k > 1", "a"),
    ("SELECT * FROM VALUES (1), (2) AS v(x), a", "a"),
    ("VALUES (1), ((SELECT 2 FROM a))", "a"),
    ("TABLE a", "a"),
    ("FROM a SELECT x WHERE y", "a"),
    ("FROM a |> WHERE x |> JOIN b ON a.x = b.x |> UNION ALL (SELECT * FROM c)", "a b c"),
    ("SELECT * FROM a TABLESAMPLE (10 PERCENT) REPEATABLE (1) b, c", "a c"),
    ("SELECT * FROM a PIVOT (sum(x) FOR y IN (1, 2)), b", "a b"),
    ("SELECT 'FROM x', \"JOIN y\", `FROM z` FROM /* FROM w */ a -- FROM v", "a"),
    ("SELECT * FROM a WHERE", "a"),
    ("SELECT CASE WHEN x THEN y ELSE z END FROM a", "a"),
    ("SELECT case, end FROM a", "a"),
    ("SELECT INTERVAL '1' DAY FROM a", "a"),
    ("SELECT left(x, 1) FROM a LEFT JOIN b ON left(a.x, 1) = right(b.x, 1) RIGHT JOIN c", "a b c"),
    ("SELECT * FROM opal.`/a b/c` AS x", "opal.`/a b/c`"),
    ("SELECT * FROM IDENTIFIER('a.b')", "IDENTIFIER('a.b')"),
    ("SELECT rank() OVER (PARTITION BY x ORDER BY y) FROM a WINDOW w AS (ORDER BY z)", "a"),
    ("SELECT a:b.c FROM t", "t"),
    ("SELECT x::map<int, string>, y FROM t", "t"),
    ("SELECT transform(x, from -> from + 1) FROM t", "t"),
]


@pytest.mark.parametrize("text, expected", READ)
def test_tables_that_a_query_reads(text: str, expected: str) -> None:
    names = [reference.table.slice.text for reference in references(text)]
    assert " ".join(names) == expected


@pytest.mark.parametrize(
    "suffix, travel",
    [
        ("VERSION AS OF 3", VersionAsOf),
        ("FOR SYSTEM_VERSION AS OF '3'", VersionAsOf),
        ("VERSION AS OF :v", VersionAsOf),
        ("TIMESTAMP AS OF '2026-11-29'", TimestampAsOf),
        ("FOR SYSTEM_TIME AS OF current_timestamp() - INTERVAL 1 DAY 2 HOURS", TimestampAsOf),
        ("TIMESTAMP AS OF date_sub(current_date(), 1)", TimestampAsOf),
        ("CHANGES FROM VERSION 1 TO VERSION 2", Changes),
        ("CHANGES FROM VERSION 1 EXCLUSIVE", Changes),
        ("CHANGES FROM TIMESTAMP '2026-11-28' TO TIMESTAMP '2026-11-29' INCLUSIVE", Changes),
    ],
)
@pytest.mark.parametrize("after", ["", " x", " AS x", " WHERE true", " JOIN b"])
def test_time_travel_belongs_to_the_reference(suffix: str, travel: type, after: str) -> None:
    reference = references(f"SELECT * FROM a {suffix}{after}")[0]
    assert isinstance(reference.travel, travel)
    assert reference.slice.text == f"a {suffix}"
    assert reference.alias == ("x" if after in (" x", " AS x") else None)


def test_changes_have_inclusive_bounds_unless_the_text_says_otherwise() -> None:
    travel = references("TABLE a CHANGES FROM VERSION 1 EXCLUSIVE TO VERSION 2")[0].travel
    assert isinstance(travel, Changes)
    assert (travel.start_inclusive, travel.end_inclusive) == (False, True)
    assert (travel.start.text, str(travel.end)) == ("1", "2")


def test_changes_of_a_name_of_with_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="a is a name of WITH, which has no CHANGES"):
        references("WITH a AS (SELECT 1) SELECT * FROM a CHANGES FROM VERSION 1")


def test_placeholder_replaces_the_reference_and_gets_its_alias() -> None:
    text = "SELECT t.id, '{x}' FROM lake.t VERSION AS OF 3 JOIN lake.u AS v ON t.id = v.id -- {"
    first, second = references(text)
    piece = Slice(text=text, offset=0)
    assert with_placeholders(piece, [(second, "b"), (first, "a")]) == (
        "SELECT t.id, '{{x}}' FROM {a} AS `t` JOIN {b} AS v ON t.id = v.id -- {{"
    )


def test_placeholder_outside_the_piece_is_refused() -> None:
    text = "SELECT * FROM a"
    with pytest.raises(InvalidInputError, match="outside the piece"):
        with_placeholders(Slice(text="SELECT", offset=0), [(references(text)[0], "x")])


def test_nesting_of_ten_thousand_levels_is_read() -> None:
    depth = 10_000
    text = "SELECT * FROM " + "(SELECT * FROM " * depth + "t" + ")" * depth
    assert [reference.table.parts for reference in references(text)] == [("t",)]
