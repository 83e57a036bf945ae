"""Statements that change rows: the table has then what Spark computes from its rows."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import functions as F

from opal_lake.errors import ConflictError, InvalidInputError
from opal_spark import OpalTable
from tests.opal_spark.spark_sql.build import DDL, Lake, content, lake, model
from tests.opal_spark.spark_sql.random_queries import Queries

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shop(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lake(spark, tmp_path_factory.mktemp("lake")) as made:
        yield made


def fresh(shop: Lake, name: str, **layout: Any) -> str:
    """Create a table with the rows of `orders`, and return its name."""
    shop.create(f"shop.{name}", **layout)
    shop.sql(f"INSERT INTO lake.shop.{name} SELECT * FROM orders")
    return f"lake.shop.{name}"


def ids(shop: Lake, table: str, column: str = "id") -> list[Any]:
    rows = shop.sql(f"SELECT {column} FROM {table} ORDER BY id").collect()
    return [row[0] for row in rows]


# UPDATE and DELETE

STATEMENTS = [
    ("UPDATE @ SET name = 'it''s {x}', total = total * 2 WHERE id <= 2", None),
    ("UPDATE @ AS o SET o.total = o.id, tags = array(o.name, ?) WHERE o.name <=> ?", ["{}", "ax"]),
    ("UPDATE @ SET total = (SELECT max(total) FROM @) + 1, name = name || '?' WHERE id = 1", None),
    ("UPDATE @ SET total = :t WHERE id IN (SELECT at FROM @) AND name <> :n", {"t": 9, "n": "}"}),
    (
        "UPDATE @ SET day = day + INTERVAL 1 DAY WHERE EXISTS (SELECT 1 FROM @ b WHERE b.id > 5)",
        None,
    ),
    (
        "UPDATE @ x SET total = (SELECT sum(y.total) FROM @ y WHERE y.day = x.day) WHERE id > 1",
        None,
    ),
    ("DELETE FROM @ WHERE total = (SELECT min(total) FROM @)", None),
    ("DELETE FROM @ o WHERE o.name = :n OR o.id = :i", {"n": "it's", "i": 3}),
    ("DELETE FROM @ WHERE name = 'SELECT' -- OR true", None),
    ("DELETE FROM @ WHERE id IN (?, ?) AND '?' = '?'", [5, 6]),
]


def changed_model(shop: Lake, text: str, args: Any) -> None:
    """Change the view `orders` as an UPDATE or DELETE changes the table."""
    from opal_lake.sql.parse import parse
    from opal_lake.sql.statements import Delete, Update

    names = [part.split(" ")[0] for part in DDL.split(", ")]
    statement = parse(text)
    assert isinstance(statement, Update | Delete)
    where = "true" if statement.where is None else statement.where.text
    alias = statement.target.alias or "orders"
    values = {}
    if isinstance(statement, Update):
        for assignment in statement.assignments:
            values[assignment.column[-1]] = assignment.value.text
    # In the order of the text, so that each ? keeps its number: values first, then the condition
    made = [f"({value}\n) AS new_{name}" for name, value in values.items()]
    rows = shop.spark.sql(
        f"SELECT *, {''.join(f'{text}, ' for text in made)} coalesce(({where}\n), false) AS hit "
        f"FROM orders AS {alias}",
        args,
    )
    if isinstance(statement, Delete):
        model(shop.spark, rows.where("NOT hit").select(*names))
        return
    columns = [
        f"IF(hit, new_{name}, {name}) AS {name}" if name in values else name for name in names
    ]
    model(shop.spark, rows.selectExpr(*columns))


@pytest.mark.slow(60)
def test_updates_and_deletes_change_what_spark_computes(shop: Lake) -> None:
    table = fresh(shop, "statements")
    before = shop.spark.table("orders").collect()
    schema = shop.spark.table("orders").schema
    for text, args in STATEMENTS:
        expected_rows = shop.spark.table("orders").count()
        shop.sql(text.replace("@", table), args)
        changed_model(shop, text.replace("@", "orders"), args)
        assert shop.rows(f"SELECT * FROM {table}") == content(shop.spark.table("orders")), text
        assert shop.spark.table("orders").count() <= expected_rows
    model(shop.spark, shop.spark.createDataFrame(before, schema))


@pytest.mark.slow(120)
@pytest.mark.parametrize("seed", range(2))
def test_random_statements_change_what_spark_computes(shop: Lake, seed: int) -> None:
    dice = random.Random(seed)
    queries = Queries(dice)
    table = fresh(shop, f"random{seed}")
    before = shop.spark.table("orders").collect()
    schema = shop.spark.table("orders").schema
    try:
        for _ in range(14):
            where = queries.condition()
            text = f"DELETE FROM @ WHERE {where} AND id % 3 = {dice.randrange(3)}"
            if dice.random() < 0.8:
                text = f"UPDATE @ SET total = {queries.number()}, name = 'n{{' WHERE {where}"
            shop.sql(text.replace("@", table))
            changed_model(shop, text.replace("@", "orders"), None)
            expected = content(shop.spark.table("orders"))
            assert shop.rows(f"SELECT * FROM {table}") == expected, text
    finally:
        model(shop.spark, shop.spark.createDataFrame(before, schema))


def test_counts_and_tokens_are_those_of_the_first_run(shop: Lake) -> None:
    table = fresh(shop, "counted")
    update = f"UPDATE {table} SET total = coalesce(total, 0) + 1 WHERE id > :id"
    assert shop.counts(update, {"id": 2}, token="a") == {"affected_rows": 4}
    assert shop.counts(update, {"id": 2}, token="a") == {"affected_rows": 4}
    assert ids(shop, table, "total") == [10.0, 20.5, 1.0, -0.5, 1.0, 11.0]
    delete = f"DELETE FROM {table} WHERE id = 6"
    assert shop.counts(delete) == {"affected_rows": 1}
    assert shop.counts(delete) == {"affected_rows": 0}
    insert = f"INSERT INTO {table} VALUES (7, 1, NULL, 'x', 1, NULL), (1, 9, NULL, 'y', 1, NULL)"
    for _ in range(2):
        counts = shop.counts(insert, token="b")
        assert counts == {"affected_rows": 2, "updated_rows": 1, "inserted_rows": 2}
    assert ids(shop, table) == [1, 2, 3, 4, 5, 7]
    assert shop.counts(f"DELETE FROM {table}") == {"affected_rows": 6}


def test_a_star_stands_for_the_columns_of_the_table(shop: Lake) -> None:
    shop.sql("CREATE TABLE lake.shop.stars (id INT PRIMARY KEY, s STRING, n INT) USING opal")
    table = "lake.shop.stars"
    shop.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2), (3, NULL, 3)")
    shop.sql(
        f"UPDATE {table} SET s = to_json(struct(*)) "
        'WHERE to_json(struct(*)) = \'{"id":1,"s":"a","n":1}\''
    )
    shop.sql(f"UPDATE {table} SET s = to_json(struct(stars.* EXCEPT (s))) WHERE id = ?", [2])
    shop.sql(
        f"MERGE INTO {table} t USING (SELECT 3 AS id, 4 AS `{{}}`) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET s = to_json(array(struct(*))) || :mark",
        {"mark": "{"},
    )
    assert ids(shop, table, "s") == [
        '{"id":1,"s":"a","n":1}',
        '{"id":2,"n":2}',
        '[{"id":3,"n":3,"id":3,"{}":4}]{',
    ]
    with pytest.raises(InvalidInputError, match="UNRESOLVED_COLUMN") as caught:
        shop.sql(f"UPDATE {table} SET s = ids")
    assert "one of the following? [`id`" in str(caught.value)
    assert "_opal_" not in str(caught.value)
    opened = OpalTable.for_path(shop.spark, f"{shop.root}/shop/stars")
    for column in (F.to_json(F.struct("*")), F.to_json(F.struct(F.col("t.*"))), F.expr("f(1, *)")):
        with pytest.raises(InvalidInputError, match="stands for all columns"):
            opened.update({"s": column})
    with pytest.raises(InvalidInputError, match="reserved for the format"):
        opened.delete(F.col("_opal_offset") == 0)
    assert opened.update({"n": F.col("n") * 2}, where=F.lit(3) * F.col("id") > 5).counts["updated"]


# INSERT


def test_a_result_has_the_notes_of_its_job(shop: Lake) -> None:
    table = fresh(shop, "noted")
    rows = "(9, 5, NULL, 'a', 1, NULL), (9, 5, NULL, 'b', 2, NULL), (1, 0, NULL, 'c', 3, NULL)"
    [result] = shop.sql(f"INSERT INTO {table} VALUES {rows}").collect()
    assert (result.num_affected_rows, result.num_updated_rows) == (3, 1)
    ambiguous, late = result.notes
    assert ambiguous.startswith("1 row of one ingest has the same key, delta and tie-break")
    assert late.startswith("1 row has a lower delta")
    [result] = shop.sql(f"UPDATE {table} SET total = 0 WHERE id = 1").collect()
    assert result.notes == []


def test_an_insert_goes_by_position_by_name_or_by_its_list(shop: Lake) -> None:
    table = fresh(shop, "inserted", partition_by=["day"])
    shop.sql(
        f"INSERT INTO {table} (name, id, at) VALUES ('a', 11, 1), (:name, 12, 1)", {"name": "{"}
    )
    shop.sql(
        f"INSERT INTO {table} BY NAME SELECT 1 AS at, CAST(13 AS SMALLINT) AS ID, 2.5 AS total"
    )
    shop.sql(
        f"INSERT INTO {table} PARTITION (day = '2026-02-0' || ?) "
        "SELECT 14, at, name, total, tags FROM orders WHERE id = ?",
        ["3", 1],
    )
    shop.sql(
        f"INSERT INTO {table} WITH w AS (SELECT * FROM {table} WHERE id = 2) "
        "SELECT 15, w.* EXCEPT (id) FROM w"
    )
    rows = shop.rows(f"SELECT id, at, day, name, total FROM {table} WHERE id > 10")
    assert rows == [
        "(11, 1, None, 'a', None)",
        "(12, 1, None, '{', None)",
        "(13, 1, None, None, 2.5)",
        "(14, 1, datetime.date(2026, 2, 3), 'ax', 10.0)",
        '(15, 1, datetime.date(2026, 1, 1), "it\'s", 20.5)',
    ]


@pytest.mark.parametrize(
    "insert, message",
    [
        ("VALUES (1, 2)", "the query has 2 columns, and the INSERT needs 6: id, at, day"),
        ("(id, at) VALUES (1, 2, 3)", "the query has 3 columns, and the INSERT needs 2: id, at"),
        ("(id, AT, at) VALUES (1, 2, 3)", "has the column 'at' twice"),
        ("(id, day) VALUES (1, NULL)", "no value for 'at', a key or delta column"),
        ("(id, at, more) VALUES (1, 2, 3)", "has a column 'more'"),
        ("BY NAME SELECT 1 AS id, 2 AS at, 3 AS more", "has a column 'more'"),
        ("(id, at, total) VALUES (1, 2, 'x')", "value of 'total' is STRING, and column 'total'"),
        ("(id, at) VALUES (99999999999999999999, 1)", "cannot hold it"),
        ("(id, at) VALUES (NULL, 1)", "is null"),
        ("PARTITION (day = 'x') VALUES (1)", "names 'day', which is not a partition column"),
        ("PARTITION (total = 1) VALUES (1)", "names 'total', which is not a partition column"),
        ("PARTITION (day = '2026-01-01') IF NOT EXISTS SELECT 1", "IF NOT EXISTS is not supported"),
        ("SELECT * FROM nowhere", "TABLE_OR_VIEW_NOT_FOUND"),
    ],
)
def test_an_insert_that_does_not_fit_changes_nothing(shop: Lake, insert: str, message: str) -> None:
    version = shop.rows("SELECT * FROM lake.shop.orders")
    with pytest.raises(Exception, match=message):
        shop.sql(f"INSERT INTO lake.shop.orders {insert}")
    assert shop.rows("SELECT * FROM lake.shop.orders") == version


def test_an_overwrite_replaces_the_table_a_partition_or_a_condition(shop: Lake) -> None:
    table = fresh(shop, "overwritten", partition_by=["day"])
    row = "array('z') FROM VALUES (1) WHERE true"
    text = f"INSERT OVERWRITE {table} PARTITION (day = :day) SELECT 21, 1, 'x', 1, {row}"
    assert shop.counts(text, {"day": "2026-01-01"}) == {
        "affected_rows": 3,
        "deleted_rows": 2,
        "inserted_rows": 1,
        "updated_rows": 0,
    }
    assert ids(shop, table) == [3, 4, 5, 6, 21]
    text = f"INSERT INTO {table} REPLACE WHERE id BETWEEN :a AND 5 SELECT 4, 3, NULL, 'y', 1, {row}"
    assert shop.counts(text, {"a": 4})["deleted_rows"] == 1
    assert ids(shop, table) == [3, 4, 6, 21]
    with pytest.raises(InvalidInputError, match="outside of the rows that it replaces"):
        shop.sql(text.replace("SELECT 4", "SELECT 40"), {"a": 4})
    with pytest.raises(InvalidInputError, match="partitionOverwriteMode is static"):
        shop.sql(f"INSERT OVERWRITE {table} PARTITION (day) SELECT * FROM orders")
    shop.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        shop.sql(f"INSERT OVERWRITE {table} SELECT * FROM orders WHERE id = 3")
        assert ids(shop, table) == [3, 4, 6, 21]
    finally:
        shop.spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    shop.sql(f"INSERT OVERWRITE {table} SELECT * FROM {table} WHERE id < 5", token="once")
    shop.sql(f"INSERT INTO {table} SELECT * FROM orders WHERE id = 1")
    shop.sql(f"INSERT OVERWRITE {table} SELECT * FROM {table} WHERE id < 5", token="once")
    assert ids(shop, table) == [1, 3, 4]


def test_a_partition_is_named_by_a_value_of_its_column(shop: Lake) -> None:
    shop.sql(
        "CREATE TABLE lake.shop.named (id INT PRIMARY KEY, n INT, day DATE, price DECIMAL(5, 1), "
        "name STRING) USING opal PARTITIONED BY (n, day, price, name)"
    )
    shop.sql(
        "INSERT INTO lake.shop.named VALUES (1, 1, NULL, 0, ''), (2, 2, DATE '2026-01-01', 0, ''), "
        "(3, 3, NULL, 1.5, ''), (4, 4, NULL, 0, '5')"
    )
    text = "INSERT OVERWRITE lake.shop.named PARTITION ({}) (id) VALUES ({})"
    for value, message in [
        ("n = 1.7", "PARTITION .n = 1.7. is 1.7 in some row, and column 'n' of type INT cannot"),
        ("n = '1.7'", "PARTITION .n = '1.7'.: the text is not INT"),
        ("n = true", "is BOOLEAN, and column 'n' is INT"),
        ("day = '2026-01-01 10:00:00'", "the text is not DATE"),
        ("price = '1.51'", "the text is not DECIMAL"),
        ("price = 1.51", "cannot hold it"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            shop.sql(text.format(value, 9))
    assert ids(shop, "lake.shop.named") == [1, 2, 3, 4]
    for number, value in enumerate(["n = '1'", "day = '2026-01-01'", "price = '1.50'", "name = 5"]):
        counts = shop.counts(text.format(value, 10 + number))
        assert (counts["deleted_rows"], counts["inserted_rows"]) == (1, 1), value


# MERGE


def test_a_merge_has_clauses_with_values_tables_and_subqueries(shop: Lake) -> None:
    table = fresh(shop, "merged")
    text = f"""
        MERGE INTO {table} AS o
        USING (
            SELECT id + 3 AS id, at + :up AS at, day, 'new {{' AS name, total, tags FROM orders
        ) s
        ON o.id = s.id AND s.total IS DISTINCT FROM :never
        WHEN MATCHED AND o.name = 'SELECT' AND s.at > (SELECT min(at) FROM {table}) THEN DELETE
        WHEN MATCHED THEN UPDATE SET o.name = concat(o.name, :mark), total = s.total + :up
        WHEN NOT MATCHED AND s.id <> :skip THEN INSERT (id, at, name) VALUES (s.id, s.at, '{{:up}}')
        WHEN NOT MATCHED BY SOURCE AND id < 3 THEN UPDATE SET tags = array(:mark)
    """
    args = {"up": 5, "never": -99.5, "mark": "}", "skip": 8}
    assert shop.counts(text, args) == {
        "affected_rows": 7,
        "deleted_rows": 1,
        "inserted_rows": 2,
        "updated_rows": 4,
    }
    assert shop.rows(f"SELECT id, name, total, tags FROM {table}") == [
        "(1, 'ax', 10.0, ['}'])",
        "(2, \"it's\", 20.5, ['}'])",
        "(3, '{id}', None, None)",
        "(5, None, 25.5, [None])",
        "(6, 'ax}', None, ['a'])",
        "(7, '{:up}', None, None)",
        "(9, '{:up}', None, None)",
    ]


def test_a_merge_takes_versions_views_and_new_columns(shop: Lake) -> None:
    table = fresh(shop, "evolved")
    shop.sql(f"UPDATE {table} SET total = 0")
    restore = f"MERGE INTO {table} USING {table} VERSION AS OF 1 AS old ON evolved.id = old.id"
    shop.sql(f"{restore} WHEN MATCHED AND old.id < ? THEN UPDATE SET total = old.total", [3])
    assert ids(shop, table, "total") == [10.0, 20.5, 0.0, 0.0, 0.0, 0.0]
    shop.sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO {table} t USING (SELECT *, :n AS more FROM orders) s "
        "ON t.id = s.id WHEN MATCHED AND s.id = 1 THEN UPDATE SET *",
        {"n": 7},
    )
    assert ids(shop, table, "more") == [7, None, None, None, None, None]
    key_merge = (
        f"MERGE INTO {table} USING orders ON evolved.id = orders.id WHEN MATCHED THEN DELETE"
    )
    assert shop.counts(key_merge)["deleted_rows"] == 6


@pytest.mark.parametrize(
    "text, message",
    [
        ("UPDATE @ SET id = 3", "cannot change the key column 'id'"),
        ("UPDATE @ SET total = 1, TOTAL = 2", "'TOTAL' is set twice"),
        ("UPDATE @ SET tags.x = 1", "a statement sets whole columns"),
        ("UPDATE @ SET lost = 1", "sets 'lost', and the table has no such column"),
        ("UPDATE @ SET total = lost", "UNRESOLVED_COLUMN"),
        ("UPDATE @ SET total = 1 WHERE lost = 1", "UNRESOLVED_COLUMN"),
        ("UPDATE @ SET total = 'x'", "is STRING, and column 'total' is DOUBLE"),
        ("UPDATE @ SET at = 99999999999999999999", "cannot hold it"),
        ("UPDATE @ SET at = 0", "lower delta or tie-break"),
        ("UPDATE @ SET total = :x", "UNBOUND_SQL_PARAMETER|UnresolvedParameter|parameter"),
        ("UPDATE @ VERSION AS OF 1 SET total = 1", "an older version of a table cannot be changed"),
        ("UPDATE lake.shop.none SET total = 1", r"lake\.shop\.none: .* is not an Opal table"),
        ("DELETE FROM @ WHERE", "expected a condition"),
        ("DELETE FROM @ WHERE _opal_offset = 0", "names that begin with '_opal_' are reserved"),
        ("UPDATE @ SET total = :x + _opal_segment", "names that begin with '_opal_' are reserved"),
        ("INSERT INTO @ REPLACE WHERE _opal_offset = 0 SELECT * FROM orders", "reserved|_opal_"),
        ("DELETE FROM @ WHERE id", "DATATYPE_MISMATCH|boolean|BOOLEAN"),
        ("DELETE FROM @ WHERE lake.pond.other.id = 1", "UNRESOLVED_COLUMN|cannot be resolved"),
        (
            "MERGE INTO @ USING orders ON orders.id = orders.id WHEN MATCHED THEN DELETE",
            "both called",
        ),
        ("MERGE INTO @ t USING orders s(a, b) ON t.id = s.id WHEN MATCHED THEN DELETE", "columns"),
        (
            "MERGE INTO @ t USING orders s ON id = s.id WHEN MATCHED THEN DELETE",
            "AMBIGUOUS|ambiguous",
        ),
        (
            (
                "MERGE INTO @ t USING (SELECT 1 AS id FROM range(2)) s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET total = 1"
            ),
            "more than once",
        ),
        (
            (
                "MERGE INTO @ t USING (SELECT id, id FROM orders) s ON t.at = 1 "
                "WHEN MATCHED THEN DELETE"
            ),
            "more than one column 'id'",
        ),
        ("MERGE INTO @ t USING orders s ON t.id = s.id WHEN MATCHED THEN UPDATE SET id = 1", "key"),
        ("TRUNCATE TABLE @", "write DELETE FROM t"),
    ],
)
def test_a_statement_that_cannot_run_changes_nothing(shop: Lake, text: str, message: str) -> None:
    table = OpalTable.for_path(shop.spark, f"{shop.root}/shop/orders")
    version = table.log.head().version
    with pytest.raises(Exception, match=message):
        shop.sql(text.replace("@", "lake.shop.orders"))
    assert table.log.head().version == version


@pytest.mark.slow
def test_a_merge_of_300_clauses_runs(shop: Lake) -> None:
    table = fresh(shop, "clauses")
    clauses = " ".join(
        f"WHEN MATCHED AND s.id = {n} AND :x = 1 THEN UPDATE SET total = {n}" for n in range(300)
    )
    text = f"MERGE INTO {table} t USING orders s ON t.id = s.id {clauses}"
    assert shop.counts(text, {"x": 1})["updated_rows"] == 6
    assert ids(shop, table, "total") == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.slow(90)
def test_no_update_is_lost_between_two_sessions(shop: Lake) -> None:
    shop.create("shop.counter", "id BIGINT, at BIGINT, n BIGINT")
    shop.sql("INSERT INTO lake.shop.counter VALUES (1, 1, 0), (2, 1, 0)")
    texts = [
        "UPDATE lake.shop.counter SET n = n + :one WHERE id = 1",
        (
            "MERGE INTO lake.shop.counter t "
            "USING (SELECT id, n + :one AS n FROM lake.shop.counter) s "
            "ON t.id = s.id AND s.id = 1 WHEN MATCHED THEN UPDATE SET n = s.n"
        ),
        (
            "UPDATE lake.shop.counter c SET n = (SELECT max(n) FROM lake.shop.counter d "
            "WHERE d.id = c.id) + :one WHERE id = 1"
        ),
    ]

    def run(text: str) -> int:
        done = 0
        for _ in range(4):
            try:
                done += shop.counts(text, {"one": 1})["affected_rows"]
            except ConflictError:
                continue
        return done

    with ThreadPoolExecutor(len(texts)) as threads:
        applied = sum(threads.map(run, texts))
    assert applied >= 4
    assert ids(shop, "lake.shop.counter", "n") == [applied, 0]
