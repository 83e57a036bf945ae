"""Queries on Opal tables: their result is that of Spark on a view with the same rows."""

import random
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import opal_spark
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_spark import OpalTable
from opal_spark.spark_sql.catalog import SETTING
from tests.opal_spark.spark_sql.build import Lake, both, content, lake
from tests.opal_spark.spark_sql.random_queries import Queries

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shop(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lake(spark, tmp_path_factory.mktemp("lake")) as made:
        yield made


# In each, @ stands for the table
SURPRISING = [
    "SELECT 'it''s', 'FROM lake.shop.orders', \"x\" FROM @ WHERE name = 'it''s'",
    "SELECT '{', '}', '{{x}}', '{opal0}', id FROM @ WHERE name = '{id}'",
    "SELECT id -- FROM nowhere {x}\n /* FROM { lake.t */ FROM @ -- '",
    "SELECT /* a /* nested */ comment */ r'\\d' AS c, '\\'' AS d, id FROM @",
    "SELECT o.id, get(o.tags, 0) FROM @ AS o WHERE get(o.tags, 0) = 'a'",
    "SELECT orders.id, orders.* EXCEPT (tags) FROM @ WHERE orders.id < 3",
    "SELECT `orders`.`id` FROM @ `orders` WHERE `id` % 2 = 0",
    "SELECT `from`.id AS `select`, `from`.name AS `a``b` FROM @ `from`",
    "WITH orders AS (SELECT 7 AS id) SELECT * FROM orders",
    "WITH x AS (SELECT 7 AS id), y AS (SELECT id FROM @ WHERE id = 1) SELECT * FROM x, y",
    "WITH x AS (SELECT * FROM @), y AS (SELECT count(*) n FROM x) SELECT x.id, n FROM x, y",
    "SELECT a.id, b.id FROM @ a JOIN @ b ON a.id = b.id + 1",
    "SELECT * FROM @ a LEFT ANTI JOIN @ b ON a.day = b.day AND a.id <> b.id",
    "SELECT id, (SELECT max(b.total) FROM @ b WHERE b.day = a.day) FROM @ a",
    "SELECT id FROM @ WHERE id IN (SELECT at FROM @) AND EXISTS (SELECT 1 FROM @ o WHERE o.id = 2)",
    "SELECT day, count(*), sum(total) FROM @ GROUP BY day HAVING count(*) > 1",
    "SELECT id FROM @ UNION ALL SELECT at FROM @ EXCEPT SELECT 1",
    "(SELECT id FROM @ ORDER BY id LIMIT 2) UNION (SELECT 100)",
    "TABLE @",
    "FROM @ SELECT id, upper(name)",
    "FROM @ |> WHERE id > 2 |> SELECT id, total |> ORDER BY id |> LIMIT 2",
    "SELECT id, t FROM @ LATERAL VIEW explode(tags) x AS t",
    "SELECT id, c FROM @, LATERAL (SELECT id + at AS c)",
    "SELECT * FROM (SELECT id, day FROM @) PIVOT (count(id) FOR day IN (DATE '2026-01-01' AS d))",
    "SELECT id, row_number() OVER w FROM @ WINDOW w AS (PARTITION BY day ORDER BY id)",
    "SELECT transform(tags, x -> concat(x, '{}')) FROM @",
    "SELECT to_date('03/01/2026', 'dd/MM/yyyy') = day, id FROM @",
    "SELECT /*+ BROADCAST(orders) */ id FROM @ JOIN VALUES (1), (2) AS v(k) ON id = k",
    "SELECT id FROM @ WHERE id = 1 OR id = 2 AND name = 'ax'",
    "SELECT id FROM @ WHERE NOT (id > 2) ORDER BY total NULLS LAST LIMIT 1",
    "SELECT id FROM @ TABLESAMPLE (100 PERCENT) WHERE id = 2",
    "SELECT count(*) FROM @ WHERE name LIKE 'a%' GROUP BY ALL",
    "SELECT id::string || '{' FROM @ WHERE day = DATE '2026-01-01'",
]


@pytest.mark.slow_but_one
@pytest.mark.parametrize("text", SURPRISING)
def test_a_surprising_text_means_what_it_means_in_spark(shop: Lake, text: str) -> None:
    given, expected = both(shop, text)
    assert given == expected


@pytest.mark.parametrize(
    "text, args",
    [
        (
            "SELECT id, :x AS x FROM @ WHERE id = :id OR name = :name",
            {"x": 1, "id": 2, "name": "ax"},
        ),
        ("SELECT ?, id FROM @ WHERE id IN (?, ?) LIMIT ?", ["?", 1, 2, 5]),
        ("SELECT id FROM @ WHERE name = :name", {"name": "it's"}),
        ("SELECT id FROM @ WHERE name = :name", {"name": "{id}"}),
        ("SELECT id FROM @ WHERE day = :day", {"day": date(2026, 1, 3)}),
        ("SELECT ':x', '?', id FROM @ WHERE id = ? -- ?", [3]),
        ("SELECT id FROM @ WHERE name = :name", {"name": "' OR true OR '"}),
        ("SELECT id FROM @ WHERE total = ? AND ? IS NULL", [10.0, None]),
    ],
)
def test_parameters_have_their_values(shop: Lake, text: str, args: Any) -> None:
    given, expected = both(shop, text, args)
    assert given == expected


def test_each_question_mark_has_its_value_around_time_travel(shop: Lake) -> None:
    text = "SELECT ?, a.id FROM @ VERSION AS OF ? a JOIN @ b ON a.id = b.id AND b.id = ?"
    assert shop.rows(text.replace("@", "lake.shop.orders"), ["x", 1, 4]) == ["('x', 4)"]
    with pytest.raises(InvalidInputError, match="args has 2 values"):
        shop.sql(text.replace("@", "lake.shop.orders"), ["x", 1])


@pytest.mark.slow(120)
@pytest.mark.parametrize("seed", range(3))
def test_a_random_query_gives_what_spark_gives(shop: Lake, seed: int) -> None:
    queries = Queries(random.Random(seed))
    for _ in range(40):
        text = queries.query()
        given, expected = both(shop, text)
        assert given == expected, text


# Names


def test_whole_names_before_columns_are_found(shop: Lake) -> None:
    text = (
        "SELECT lake.shop.orders.id, lake . shop . orders . name FROM lake.shop.orders "
        "WHERE lake.shop.`orders`.id = 2 AND EXISTS (SELECT 1 WHERE LAKE.shop.Orders.id > 1)"
    )
    assert shop.rows(text) == ['(2, "it\'s")']
    assert len(shop.rows("SELECT lake.shop.orders.* FROM lake.shop.orders")) == 6


def test_whole_names_may_have_two_parts(shop: Lake) -> None:
    root, path = f"{shop.root}/shop", f"opal.`{shop.root}/shop/orders`"
    opal_spark.catalog(shop.spark, "shelf", root=root)
    try:
        text = "SELECT shelf.orders.id, orders.name FROM shelf.orders WHERE shelf.orders.id = 2"
        assert shop.rows(text) == ['(2, "it\'s")']
        assert shop.rows(f"SELECT {path}.id FROM {path} WHERE {path}.id = 2") == ["(2,)"]
        update = "UPDATE shelf.orders SET total = shelf.orders.total WHERE shelf.orders.id = 0"
        assert shop.counts(update) == {"affected_rows": 0}
    finally:
        shop.spark.conf.unset(f"{SETTING}shelf")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 FROM lake.shop.orders, (SELECT 1 AS id) orders WHERE lake.shop.orders.id = 1",
        "SELECT lake.shop.orders.id FROM lake.shop.orders, opal.`{root}/shop/orders` AS orders",
        "SELECT lake.shop.orders.id FROM lake.shop.orders, orders",
    ],
)
def test_a_whole_name_that_could_be_of_two_tables_is_refused(shop: Lake, text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"more than one table; give lake\.shop\.orders an"):
        shop.sql(text.replace("{root}", str(shop.root)))


def test_tables_views_and_paths_join(shop: Lake) -> None:
    text = (
        "SELECT a.id, v.id, p.id FROM lake.shop.orders a JOIN orders v ON a.id = v.id "
        f"JOIN opal.`{shop.root}/shop/orders` p ON p.id = v.id WHERE a.id = 2"
    )
    assert shop.rows(text) == ["(2, 2, 2)"]
    name = "IDENTIFIER('lake.shop.' || :table)"
    assert shop.rows(f"SELECT count(*) FROM {name}", {"table": "orders"}) == ["(6,)"]


def test_opal_tables_go_into_tables_of_spark(shop: Lake, tmp_path: Path) -> None:
    target = f"parquet.`{tmp_path}/copy`"
    shop.spark.sql("SELECT 0L AS id, '' AS name WHERE false").write.parquet(f"{tmp_path}/copy")
    shop.sql(
        f"INSERT OVERWRITE DIRECTORY '{tmp_path}/copy' USING parquet "
        "SELECT id, name FROM orders WHERE id = :id",
        {"id": 2},
    )
    assert content(shop.spark.sql(f"SELECT * FROM {target}")) == ['(2, "it\'s")']


def test_statements_without_an_opal_table_are_spark_s(shop: Lake) -> None:
    assert shop.rows("SELECT '{x}' AS c, :n + 1 AS n", {"n": 1}) == ["('{x}', 2)"]
    shop.sql("SET spark.opal.test = {x}")
    assert shop.spark.conf.get("spark.opal.test") == "{x}"
    shop.spark.conf.unset("spark.opal.test")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        shop.sql("SELECT * FROM pond.orders")
    for text in ("UPDATE x SET", "SELECT 'a", "MERGE INTO x USING y"):
        with pytest.raises(Exception, match=r"PARSE_SYNTAX_ERROR|ParseException"):
            shop.sql(text)
    with pytest.raises(InvalidInputError, match="leave out the token"):
        shop.sql("SELECT 1", token="a")


# Time travel


@pytest.fixture(scope="module")
def versions(shop: Lake) -> Lake:
    """Return the lake with `lake.shop.v`: versions 1 to 3, and a savepoint at 2."""
    table = shop.create("shop.v", "id BIGINT, at BIGINT, x STRING")
    for number in (1, 2, 3):
        shop.sql(f"INSERT INTO lake.shop.v VALUES (1, {number}, 'x{number}'), ({number}, 9, 'y')")
        if number == 2:
            table.savepoint("two")
    return shop


def test_versions_are_read_by_number_and_savepoint(versions: Lake) -> None:
    def newest(travel: str, args: Any = None) -> list[str]:
        return versions.rows(f"SELECT count(*) FROM lake.shop.v {travel} AS t", args)

    assert newest("VERSION AS OF 1") == newest("FOR VERSION AS OF '1'") == ["(1,)"]
    assert newest("VERSION AS OF 'two'") == newest("VERSION AS OF :v", {"v": 2}) == ["(2,)"]
    assert newest("") == newest("VERSION AS OF ?", [4]) == ["(3,)"]
    for travel, message in [
        ("VERSION AS OF 99", "has no version 99"),
        ("VERSION AS OF 'three'", "no savepoint 'three'; give a version, or one of its.*'two'"),
        ("VERSION AS OF 1.5", "which is not a version"),
    ]:
        with pytest.raises((InvalidInputError, NotFoundError), match=message):
            newest(travel)


def test_a_time_is_read_in_the_session_s_zone(versions: Lake) -> None:
    committed = commit_times(versions)
    zone = versions.spark.conf.get("spark.sql.session.timeZone")
    try:
        for session_zone in ("UTC", "America/Los_Angeles", "Asia/Kolkata"):
            versions.spark.conf.set("spark.sql.session.timeZone", session_zone)
            local = versions.spark.sql(
                f"SELECT CAST(timestamp_micros({committed[1]}) AS STRING)"
            ).first()[0]
            text = f"SELECT count(*) FROM lake.shop.v TIMESTAMP AS OF '{local}'"
            assert versions.rows(text) == ["(1,)"], session_zone
            later = f"TIMESTAMP AS OF '{local}'::timestamp - INTERVAL 1 MICROSECOND"
            assert versions.rows(f"SELECT count(*) FROM lake.shop.v {later}") == ["(0,)"]
    finally:
        versions.spark.conf.set("spark.sql.session.timeZone", zone)
    text = "SELECT count(*) FROM lake.shop.v TIMESTAMP AS OF"
    assert versions.rows(f"{text} current_timestamp()") == ["(3,)"]
    with pytest.raises(InvalidInputError, match="is not a time"):
        versions.sql(f"{text} CAST(NULL AS STRING)")
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        versions.sql(f"{text} 'soon'")


def commit_times(made: Lake) -> dict[int, int]:
    table = OpalTable.for_path(made.spark, f"{made.root}/shop/v")
    return {commit.version: commit.timestamp_us for commit in table.commits()}


def test_changes_are_between_versions(versions: Lake) -> None:
    def changes(bounds: str, args: Any = None) -> list[str]:
        columns = "_commit_version, _change_type, x"
        return versions.rows(f"SELECT {columns} FROM lake.shop.v CHANGES FROM {bounds}", args)

    both_versions = changes("VERSION 1 TO VERSION 2")
    assert {text.split(",")[0] for text in both_versions} == {"(1", "(2"}
    assert changes("VERSION 1 EXCLUSIVE TO VERSION 'two'") == changes("VERSION 2 TO VERSION 2")
    assert changes("VERSION :a TO VERSION :b EXCLUSIVE", {"a": 1, "b": 3}) == both_versions
    assert changes("VERSION 4 EXCLUSIVE") == []
    times = {
        version: f"timestamp_micros({committed_us})"
        for version, committed_us in commit_times(versions).items()
    }
    assert changes(f"TIMESTAMP {times[1]} TO TIMESTAMP {times[2]}") == both_versions
    assert changes(f"TIMESTAMP {times[1]} EXCLUSIVE TO TIMESTAMP {times[2]}") == changes(
        "VERSION 2 TO VERSION 2"
    )


# Files


def test_a_where_skips_files(shop: Lake) -> None:
    shop.create("shop.large", "id BIGINT, at BIGINT, name STRING")
    for first in (0, 100, 200, 300):
        shop.sql(
            "INSERT INTO lake.shop.large "
            f"SELECT id + {first}, 1, concat('n', id + {first}) FROM range(100)"
        )
    for where, files, args in [
        ("", 4, None),
        ("WHERE id = 150", 1, None),
        ("AS l WHERE l.id > 250 AND name <> 'x' GROUP BY ALL", 2, None),
        ("WHERE (id = 50 OR id = 350) ORDER BY 1", 2, None),
        ("WHERE id = :id", 1, {"id": 150}),
        ("WHERE id = ? AND ? = 1", 1, [150, 1]),
        ("WHERE name = :name", 2, {"name": "n150"}),
        ("WHERE id = 150 UNION ALL SELECT 1", 1, None),
        ("TABLESAMPLE (10 ROWS) WHERE id = 150", 4, None),
        ("WHERE id + 0 = 150", 4, None),
        ("AS a JOIN VALUES (1) AS b(k) WHERE a.id = 150", 4, None),
        ("WHERE id = 150 OR rand() < 0", 4, None),
    ]:
        rows = shop.sql(f"SELECT count(*) FROM lake.shop.large {where}", args)
        assert len(rows.inputFiles()) == files, where
    text = "SELECT (SELECT count(*) FROM lake.shop.large WHERE id < 100), count(*) FROM "
    assert shop.rows(f"{text} lake.shop.large WHERE id > 350") == ["(100, 49)"]


def test_a_setting_in_a_where_is_replaced_as_by_spark(shop: Lake) -> None:
    shop.spark.conf.set("spark.opal.test", "ax")
    try:
        text = "SELECT count(*) FROM lake.shop.orders WHERE name = '${spark.opal.test}'"
        assert shop.rows(text) == ["(2,)"]
    finally:
        shop.spark.conf.unset("spark.opal.test")


# What is refused


@pytest.mark.parametrize(
    "text, message",
    [
        ("SELECT * FROM lake.shop.none", r"lake\.shop\.none: .* is not an Opal table"),
        ("SELECT * FROM lake.shop", r"lake\.shop: .* is not an Opal table"),
        ("SELECT * FROM opal.`/nowhere`", r"opal.`/nowhere`: /nowhere is not an Opal table"),
        ("SELECT * FROM lake.`..`.orders", "cannot be a table or namespace"),
        ("SELECT * FROM lake.shop.orders WITH ('a' = 'b')", "no options in SQL"),
        ("SELECT * FROM STREAM lake.shop.orders", "readStream"),
        ("CREATE VIEW v AS SELECT * FROM lake.shop.orders", "createOrReplaceTempView"),
        ("SELEC * FROM lake.shop.orders", "line 1, column 1: Spark's parser: Syntax error"),
        (
            "SELECT *\nFROM lake.shop.orders WHERE id = = 1",
            "line 2, column 34: Spark's parser: Syntax error at or near '='",
        ),
        ("SELECT * FROM table_changes('lake.shop.orders', 1)", "lake.shop.orders CHANGES FROM"),
        ("SELECT * FROM lake.shop.orders.history", "write DESCRIBE HISTORY lake.shop.orders"),
        ("SELECT * FROM lake.shop.orders.files", r"system.files\('shop.orders'\)"),
        ("SELECT id FROM lake.shop.orders@v1", "write lake.shop.orders VERSION AS OF 1"),
        (
            "INSERT INTO lake.shop.orders (id, at) VALUES (CAST(NULL AS BIGINT), 1)",
            r'  [{]"id": null.*: key column .id. is null\nCorrect the source, or ingest the rows',
        ),
        ("GRANT SELECT ON lake.shop.orders TO u", "the page SQL of the reference"),
        ("CACHE TABLE lake.shop.orders", "not supported on Opal tables"),
        ("ANALYZE TABLE lake.shop.orders COMPUTE STATISTICS", "not supported on Opal tables"),
        ("TRUNCATE TABLE lake.shop.orders", "write DELETE FROM t"),
        ("CREATE SCHEMA IF NOT EXISTS lake.new", "exists as soon as it has a table"),
        ("CREATE NAMESPACE lake.a.b COMMENT 'x'", "exists as soon as it has a table"),
        ("DROP DATABASE lake.shop CASCADE", "write DROP TABLE for each"),
        ("DESCRIBE SCHEMA lake.shop", "SHOW TABLES IN"),
        ("SELECT nothing FROM lake.shop.orders", "UNRESOLVED_COLUMN"),
        ("SELECT id FROM lake.shop.orders a, lake.shop.orders b", "AMBIGUOUS_REFERENCE"),
        ("SELECT * FROM lake.shop.orders WHERE )", "this [)] closes nothing"),
        ("SELECT 'a FROM lake.shop.orders", "line 1, column 8: the string .* has no end"),
        ("SELECT 1 FROM lake.shop.orders; SELECT 2", "run one statement at a time"),
        ("SELECT * FROM lake.shop.orders WHERE id = :x", "UNBOUND_SQL_PARAMETER"),
    ],
)
def test_a_query_that_cannot_run_says_why(shop: Lake, text: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        shop.sql(text).collect()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM pond.shop.t",
        "INSERT INTO lake.shop.orders SELECT * FROM pond.shop.t",
        "DELETE FROM pond.shop.t",
        "CREATE TABLE pond.shop.t (id INT) USING opal",
        "DROP TABLE IF EXISTS pond.shop.t",
        "DESCRIBE HISTORY pond.shop.t",
        "RESTORE pond.shop.t TO VERSION AS OF 1",
        "CALL pond.system.compact('t')",
        "SHOW TABLES IN pond.shop",
    ],
)
def test_name_in_an_unknown_catalog_says_how_to_add_it(shop: Lake, text: str) -> None:
    message = "no catalog 'pond'; its catalogs of Opal tables: lake. Write opal_spark.catalog"
    with pytest.raises(InvalidInputError, match=message):
        shop.sql(text)


def test_rows_go_into_tables_and_files_of_spark(shop: Lake, tmp_path: Path) -> None:
    shop.sql("CREATE TABLE copied USING parquet AS SELECT id, name FROM lake.shop.orders")
    try:
        given, expected = (
            shop.rows("SELECT * FROM copied"),
            shop.rows("SELECT id, name FROM orders"),
        )
        assert given == expected
    finally:
        shop.spark.sql("DROP TABLE copied")
    folder = tmp_path / "exported"
    shop.sql(f"INSERT OVERWRITE DIRECTORY '{folder}' USING parquet SELECT id FROM lake.shop.orders")
    assert shop.spark.read.parquet(str(folder)).count() == 6


@pytest.mark.parametrize(
    "setting, text",
    [
        ("spark.sql.ansi.doubleQuotedIdentifiers", 'SELECT "id" FROM lake.shop.orders'),
        ("spark.sql.parser.escapedStringLiterals", "SELECT '\\' FROM lake.shop.orders"),
    ],
)
def test_a_setting_that_changes_the_language_is_refused(
    shop: Lake, setting: str, text: str
) -> None:
    shop.spark.conf.set(setting, True)
    try:
        with pytest.raises(InvalidInputError, match=f"{setting} is true"):
            shop.sql(text)
        assert len(shop.rows("SELECT id FROM lake.shop.orders")) == 6
    finally:
        shop.spark.conf.unset(setting)
