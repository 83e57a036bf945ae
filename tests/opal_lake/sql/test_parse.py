"""Statements: their kinds, their parts, and errors with a place."""

import time
from typing import Any

import pytest

from opal_lake.errors import InvalidInputError
from opal_lake.sql.parse import parse, split_script
from opal_lake.sql.statements import (
    CreateTable,
    Delete,
    InsertInto,
    Merge,
    Other,
    Query,
    Slice,
    TableName,
    Update,
)


def plain(value: Any) -> Any:
    """Return a value with the texts of its slices and names."""
    if isinstance(value, Slice | TableName):
        return str(value)
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if hasattr(value, "__dataclass_fields__"):
        return {
            name: plain(getattr(value, name))
            for name in value.__dataclass_fields__
            if name not in ("slice", "text", "references") and getattr(value, name)
        }
    return value


KINDS = [
    ("SELECT 1", "Query", {}),
    ("INSERT INTO t VALUES (1)", "InsertInto", {"table": "t", "query": "VALUES (1)"}),
    (
        "INSERT INTO TABLE a.t (x, `y z`) SELECT 1, 2",
        "InsertInto",
        {"table": "a.t", "columns": ("x", "y z"), "query": "SELECT 1, 2"},
    ),
    ("INSERT INTO t (SELECT 1)", "InsertInto", {"table": "t", "query": "(SELECT 1)"}),
    (
        "INSERT INTO t BY NAME TABLE s",
        "InsertInto",
        {"table": "t", "by_name": True, "query": "TABLE s"},
    ),
    (
        "INSERT OVERWRITE t PARTITION (d = '1', e) SELECT 1",
        "InsertOverwrite",
        {
            "table": "t",
            "partition": ({"column": "d", "value": "'1'"}, {"column": "e"}),
            "query": "SELECT 1",
        },
    ),
    (
        "INSERT INTO t REPLACE WHERE a = f (1) AND b SELECT * FROM s",
        "InsertReplaceWhere",
        {"table": "t", "where": "a = f (1) AND b", "query": "SELECT * FROM s"},
    ),
    (
        "UPDATE t AS x SET x.a = a + 1, b = CASE WHEN c THEN 'WHERE' END WHERE d IN (1, 2)",
        "Update",
        {
            "target": {"table": "t", "alias": "x"},
            "assignments": (
                {"column": ("x", "a"), "value": "a + 1"},
                {"column": ("b",), "value": "CASE WHEN c THEN 'WHERE' END"},
            ),
            "where": "d IN (1, 2)",
        },
    ),
    (
        "UPDATE t SET a = b::map<int, string>",
        "Update",
        {
            "target": {"table": "t"},
            "assignments": ({"column": ("a",), "value": "b::map<int, string>"},),
        },
    ),
    ("DELETE FROM t", "Delete", {"target": {"table": "t"}}),
    (
        "DELETE FROM t x WHERE x.a",
        "Delete",
        {"target": {"table": "t", "alias": "x"}, "where": "x.a"},
    ),
    ("DROP TABLE IF EXISTS t PURGE", "DropTable", {"table": "t", "if_exists": True, "purge": True}),
    ("SHOW TABLES IN a.b LIKE 'x*'", "ShowTables", {"namespace": "a.b", "like": "x*"}),
    ("SHOW TABLES", "ShowTables", {}),
    ("SHOW CREATE TABLE t", "ShowCreateTable", {"table": "t"}),
    ("SHOW TBLPROPERTIES t ('a.b')", "ShowProperties", {"table": "t", "key": "a.b"}),
    ("DESCRIBE TABLE EXTENDED t", "DescribeTable", {"table": "t", "extended": True}),
    ("DESC history", "DescribeTable", {"table": "history"}),
    ("DESCRIBE HISTORY t LIMIT 5", "DescribeHistory", {"table": "t", "limit": 5}),
    ("RESTORE TABLE t TO VERSION AS OF 3", "Restore", {"table": "t", "travel": {"version": "3"}}),
    (
        "RESTORE t TO TIMESTAMP AS OF '2026'",
        "Restore",
        {"table": "t", "travel": {"timestamp": "'2026'"}},
    ),
    (
        "CALL lake.system.compact('t', mode => 'major')",
        "Call",
        {
            "procedure": "lake.system.compact",
            "arguments": ({"value": "'t'"}, {"value": "'major'", "name": "mode"}),
        },
    ),
    ("CALL a.b()", "Call", {"procedure": "a.b"}),
    ("ALTER TABLE t RENAME TO u", "RenameTable", {"table": "t", "new_name": "u"}),
    (
        "ALTER TABLE t RENAME COLUMN a.b TO c",
        "RenameColumn",
        {"table": "t", "column": ("a", "b"), "new_name": "c"},
    ),
    (
        "ALTER TABLE t DROP COLUMNS IF EXISTS (a, b.c)",
        "DropColumns",
        {"table": "t", "columns": (("a",), ("b", "c")), "if_exists": True},
    ),
    (
        "ALTER TABLE t ADD COLUMN a.b INT DEFAULT 3 NOT NULL COMMENT 'x' AFTER c, d STRING FIRST",
        "AddColumns",
        {
            "table": "t",
            "columns": (
                {
                    "name": ("a", "b"),
                    "type": "INT",
                    "default": "3",
                    "not_null": True,
                    "comment": "x",
                    "position": {"after": "c"},
                },
                {"name": ("d",), "type": "STRING", "position": {}},
            ),
        },
    ),
    (
        "ALTER TABLE t ALTER COLUMN a TYPE DECIMAL(10, 2)",
        "AlterColumns",
        {"table": "t", "changes": ({"column": ("a",), "type": "DECIMAL(10, 2)"},)},
    ),
    (
        "ALTER TABLE t ALTER a SET NOT NULL, b DROP DEFAULT",
        "AlterColumns",
        {
            "table": "t",
            "changes": (
                {"column": ("a",), "not_null": True},
                {"column": ("b",), "drop_default": True},
            ),
        },
    ),
    (
        "ALTER TABLE t CHANGE COLUMN a a BIGINT COMMENT 'x' FIRST",
        "AlterColumns",
        {
            "table": "t",
            "changes": ({"column": ("a",), "type": "BIGINT", "comment": "x", "position": {}},),
        },
    ),
    (
        "ALTER TABLE t ADD CONSTRAINT c CHECK (a > 1)",
        "AddConstraint",
        {"table": "t", "constraint": {"condition": "a > 1", "name": "c"}},
    ),
    (
        "ALTER TABLE t DROP CONSTRAINT IF EXISTS c",
        "DropConstraint",
        {"table": "t", "name": "c", "if_exists": True},
    ),
    (
        "ALTER TABLE t SET TBLPROPERTIES ('a' = 'b', c.d = 1, e true)",
        "SetProperties",
        {"table": "t", "properties": {"a": "b", "c.d": "1", "e": "true"}},
    ),
    (
        "ALTER TABLE t UNSET TBLPROPERTIES ('a', b.c)",
        "UnsetProperties",
        {"table": "t", "keys": ("a", "b.c")},
    ),
    (
        "ALTER TABLE t ADD PARTITION (a = 1)",
        "Other",
        {
            "names": ("t",),
            "hint": "a partition exists as soon as it has rows; leave the statement out",
        },
    ),
    (
        "OPTIMIZE lake.t",
        "Other",
        {"names": ("lake.t",), "hint": "write CALL lake.system.compact('t')"},
    ),
    (
        "SHOW SCHEMAS FROM lake.shop LIKE 'a*'",
        "ShowNamespaces",
        {"namespace": "lake.shop", "like": "a*"},
    ),
    ("SET a.b = 1", "Other", {"names": ("a.b",)}),
]


@pytest.mark.parametrize("text, kind, parts", KINDS)
@pytest.mark.parametrize("end", ["", " ;", "\n-- the end\n"])
def test_statement_and_its_parts(text: str, kind: str, parts: dict[str, Any], end: str) -> None:
    statement = parse(text + end)
    assert type(statement).__name__ == kind
    assert plain(statement) == parts
    assert statement.text == Slice(text=text, offset=0)


@pytest.mark.parametrize(
    "text, hint",
    [
        ("OPTIMIZE opal.`/lake/t` ZORDER BY (a)", "CALL lake.system.zorder('opal.`/lake/t`'"),
        ("OPTIMIZE lake.`my shop`.t WHERE a = 1", "CALL lake.system.compact('`my shop`.t')"),
        ("VACUUM lake.a.t RETAIN 168 HOURS", "CALL lake.system.retain('a.t'), which"),
        ("REORG TABLE lake.a.t APPLY (PURGE)", "CALL lake.system.compact('a.t')"),
        ("DESCRIBE DETAIL lake.a.t", "DESCRIBE EXTENDED"),
        ("SHOW PARTITIONS lake.a.t", "SELECT DISTINCT"),
        ("SHOW COLUMNS IN lake.a.t", "DESCRIBE t"),
        ("SHOW VIEWS IN lake.a", "SHOW TABLES IN"),
        ("SHOW TABLE EXTENDED IN lake.a LIKE 't'", "DESCRIBE EXTENDED"),
        ("USE lake.a", "whole names"),
        ("USE SCHEMA lake.a", "whole names"),
        ("DROP SCHEMA lake.a", "a namespace is a folder"),
        ("CREATE TABLE lake.u LIKE lake.t", "SHOW CREATE TABLE"),
        ("CREATE OR REPLACE TABLE lake.u SHALLOW CLONE lake.t", "AS SELECT * FROM"),
        ("CREATE TABLE lake.u (a INT) USING delta", "write USING opal"),
        ("CREATE OR REPLACE TEMP VIEW v AS SELECT * FROM lake.t", "createOrReplaceTempView"),
        ("MSCK REPAIR TABLE lake.t", "leave the statement out"),
        ("REFRESH TABLE lake.t", "newest version"),
        ("COMMENT ON TABLE lake.t IS 'x'", "no comments"),
        ("CACHE TABLE lake.t", ".cache()"),
        ("COPY INTO lake.t FROM 's3://b/k'", "parquet.`path`"),
        ("ALTER TABLE lake.a.t DROP PARTITION (d = 1)", "DELETE FROM lake.a.t WHERE"),
        ("ALTER TABLE lake.a.t DROP IF EXISTS PARTITION (d = 1)", "system.drop_partition('a.t', "),
        ("ALTER TABLE lake.t SET LOCATION 'x'", "not moved"),
        ("ALTER TABLE lake.t CLUSTER BY (a)", "CALL lake.system.zorder('t'"),
        ("ALTER TABLE lake.t REPLACE COLUMNS (a INT)", "CREATE OR REPLACE TABLE"),
        ("ALTER TABLE lake.t SET SERDE 'x'", "and SET and UNSET TBLPROPERTIES"),
        ("SELEC 1", None),
    ],
)
def test_statement_that_is_not_supported_has_a_hint(text: str, hint: str | None) -> None:
    statement = parse(text)
    assert isinstance(statement, Other)
    if hint is None:
        assert statement.hint is None
    else:
        assert hint in (statement.hint or "")


def test_create_table_has_its_columns_constraints_and_clauses() -> None:
    statement = parse("""
        CREATE OR REPLACE TABLE lake.shop.orders (
            id BIGINT NOT NULL COMMENT 'the key',
            items MAP<STRING, ARRAY<INT>> DEFAULT map('a', array(1)),
            at TIMESTAMP,
            day DATE GENERATED ALWAYS AS (date(at)),
            CONSTRAINT pk PRIMARY KEY (id),
            CONSTRAINT positive CHECK (id > 0 AND (day <> DATE '1970-01-01'))
        )
        USING opal
        PARTITIONED BY (day, bucket(4, id))
        LOCATION 's3a://lake/orders'
        COMMENT 'orders'
        TBLPROPERTIES ('delta' = 'at', retention.days = 30)
    """)
    assert isinstance(statement, CreateTable)
    assert plain(statement) == {
        "table": "lake.shop.orders",
        "mode": "create_or_replace",
        "columns": (
            {"name": ("id",), "type": "BIGINT", "not_null": True, "comment": "the key"},
            {
                "name": ("items",),
                "type": "MAP<STRING, ARRAY<INT>>",
                "default": "map('a', array(1))",
            },
            {"name": ("at",), "type": "TIMESTAMP"},
            {"name": ("day",), "type": "DATE", "generated_as": "date(at)"},
        ),
        "primary_key": {"columns": ("id",), "name": "pk"},
        "checks": ({"condition": "id > 0 AND (day <> DATE '1970-01-01')", "name": "positive"},),
        "provider": "opal",
        "partitioned_by": ("day", "bucket(4, id)"),
        "location": "s3a://lake/orders",
        "comment": "orders",
        "properties": {"delta": "at", "retention.days": "30"},
    }


def test_merge_has_its_clauses_in_order() -> None:
    statement = parse("""
        MERGE WITH SCHEMA EVOLUTION INTO lake.t AS t
        USING (SELECT * FROM lake.s VERSION AS OF 3) s ON t.id = s.id AND s.kind <> 'WHEN'
        WHEN MATCHED AND s.op = 'D' /* THEN */ THEN DELETE
        WHEN MATCHED AND CASE WHEN s.a THEN true END THEN UPDATE SET t.a = s.a, b = s.b + (1)
        WHEN MATCHED THEN UPDATE SET *
        WHEN NOT MATCHED BY TARGET AND s.x IN (SELECT y FROM u)
        THEN INSERT (id, a.b) VALUES (s.id, f(1, 2))
        WHEN NOT MATCHED THEN INSERT *
        WHEN NOT MATCHED BY SOURCE THEN UPDATE SET gone = true
    """)
    assert isinstance(statement, Merge)
    assert plain(statement) == {
        "target": {"table": "lake.t", "alias": "t"},
        "on": "t.id = s.id AND s.kind <> 'WHEN'",
        "source_query": "SELECT * FROM lake.s VERSION AS OF 3",
        "source_alias": "s",
        "with_schema_evolution": True,
        "clauses": (
            {"kind": "matched", "action": "delete", "condition": "s.op = 'D'"},
            {
                "kind": "matched",
                "action": "update",
                "condition": "CASE WHEN s.a THEN true END",
                "assignments": (
                    {"column": ("t", "a"), "value": "s.a"},
                    {"column": ("b",), "value": "s.b + (1)"},
                ),
            },
            {"kind": "matched", "action": "update_all"},
            {
                "kind": "not_matched",
                "action": "insert",
                "condition": "s.x IN (SELECT y FROM u)",
                "columns": (("id",), ("a", "b")),
                "values": ("s.id", "f(1, 2)"),
            },
            {"kind": "not_matched", "action": "insert_all"},
            {
                "kind": "not_matched_by_source",
                "action": "update",
                "assignments": ({"column": ("gone",), "value": "true"},),
            },
        ),
    }
    assert [str(reference.table) for reference in statement.references] == ["lake.s", "u"]


def test_slices_are_the_text_of_the_user_with_its_comments() -> None:
    text = "UPDATE t SET a = /* before */ 1 + -- one\n  2 -- after\nWHERE b = 'x''y'"
    statement = parse(text)
    assert isinstance(statement, Update)
    value = statement.assignments[0].value
    assert value.text == "1 + -- one\n  2"
    assert text[value.offset : value.end] == value.text


def test_path_of_a_table_is_known() -> None:
    statement = parse("DELETE FROM OPAL.`s3a://lake/a``b`")
    assert isinstance(statement, Delete)
    assert statement.target.table.path == "s3a://lake/a`b"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "line 1, column 1: the text has no statement"),
        ("-- nothing\n;", "the text has no statement"),
        ("SELECT 1; SELECT 2", "line 1, column 9: another statement follows this semicolon"),
        ("DELETE FROM t WHERE", "column 20: expected a condition, found the end of the statement"),
        ("UPDATE t SET a = WHERE b", "column 18: expected an expression, found WHERE"),
        ("UPDATE t\nSET a", r"line 2, column 6: expected =, found the end of the statement"),
        (
            "INSERT INTO t VALUES (1, 2), (3, default)",
            "column 34: DEFAULT is not supported as a value; leave the column out",
        ),
        ("INSERT INTO t (a) VALUES DEFAULT", "column 26: DEFAULT is not supported"),
        ("INSERT INTO t REPLACE WHERE a = 1 VALUES (DEFAULT)", "column 43: DEFAULT is not"),
        ("UPDATE t SET a = default WHERE b", "column 18: DEFAULT is not supported.*backticks"),
        (
            "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN UPDATE SET b = DEFAULT",
            "write the value itself",
        ),
        (
            "MERGE INTO t USING s ON t.a = s.a WHEN NOT MATCHED THEN INSERT (a) VALUES (DEFAULT)",
            "write the value itself",
        ),
        ("UPDATE t SET a = (1", r"column 18: the \( that begins here has no \)"),
        ("UPDATE t SET a = 1)", r"column 19: this \) closes nothing"),
        ("DELETE FROM t VERSION AS OF 1", "an older version of a table cannot be changed"),
        ("MERGE INTO t USING s WHEN MATCHED", "expected ON, found WHEN"),
        ("MERGE INTO t USING s ON a", "expected WHEN MATCHED or WHEN NOT MATCHED"),
        (
            "MERGE INTO t USING s ON a WHEN MATCHED THEN INSERT *",
            "expected UPDATE or DELETE, found INSERT",
        ),
        ("MERGE INTO t USING s ON a WHEN NOT MATCHED THEN DELETE", "expected INSERT, found DELETE"),
        (
            "MERGE INTO t USING s ON a WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1)",
            "INSERT names 2 columns, but has 1 values",
        ),
        (
            "MERGE INTO t USING s ON a WHEN MATCHED THEN DELETE WHEN MATCHED THEN DELETE",
            "column 52: an earlier clause of this kind has no condition",
        ),
        ("MERGE INTO t USING s ON a WHEN NOT MATCHED BY SOURCE THEN UPDATE *", "has no source row"),
        (
            "MERGE INTO t USING s ON a WHEN MATCHED AND CASE WHEN b THEN DELETE",
            "expected END of CASE",
        ),
        ("INSERT INTO t SET a = 1", "expected a query, which begins with SELECT"),
        ("INSERT t VALUES (1)", "expected INTO or OVERWRITE, found t"),
        ("CREATE TABLE t (a INT, A INT) USING opal", "the column a is there twice"),
        ("CREATE TABLE t (a INT UNIQUE) USING opal", "UNIQUE constraints are not supported"),
        ("CREATE TABLE t (a INT) USING opal CLUSTERED BY (a) INTO 4 BUCKETS", "expected USING"),
        (
            "CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY) USING opal",
            "a table has one PRIMARY KEY",
        ),
        ("CREATE TABLE t (a INT) USING opal AS SELECT 1", "takes its columns from the query"),
        ("CREATE OR REPLACE TABLE IF NOT EXISTS t USING opal", "exclude each other"),
        ("ALTER TABLE t CHANGE COLUMN a b INT", "write RENAME COLUMN a TO b"),
        ("ALTER TABLE t ALTER COLUMN a", "expected TYPE, COMMENT, FIRST, AFTER, SET or DROP"),
        ("RESTORE t", "expected VERSION AS OF or TIMESTAMP AS OF"),
        ("RESTORE t TO VERSION AS OF x", "expected the number of a version, found x"),
        ("DROP TABLE", "expected the name of a table, found the end of the statement"),
        ("CALL a.b(1,)", r"expected a value, found \)"),
    ],
)
def test_wrong_statement_is_an_error_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        parse(text)
    assert str(caught.value).startswith("SQL, line ")


def test_script_is_split_at_semicolons_outside_quotes() -> None:
    script = "-- first\nSELECT ';' ; /* ; */\n;DELETE FROM `;`;\nUPDATE t SET"
    pieces = split_script(script)
    assert [str(piece) for piece in pieces] == ["SELECT ';'", "DELETE FROM `;`", "UPDATE t SET"]
    assert isinstance(parse(script, pieces[0]), Query)
    with pytest.raises(InvalidInputError, match="line 4, column 13: expected a column"):
        parse(script, pieces[2])


def test_script_of_begin_and_end_is_not_split() -> None:
    with pytest.raises(InvalidInputError, match="BEGIN"):
        split_script("SELECT 1; BEGIN SELECT 2; END")
    assert isinstance(parse("BEGIN SELECT 2; SELECT 3; END"), Other)


def test_time_to_read_a_merge_grows_with_its_clauses() -> None:
    clause = "WHEN MATCHED AND s.a = {0} AND x IN (SELECT y FROM z) THEN UPDATE SET a = {0}, b = 1 "

    def seconds(count: int) -> float:
        clauses = "".join(clause.format(number) for number in range(count))
        start = time.process_time()
        statement = parse(f"MERGE INTO t USING s ON t.id = s.id {clauses}")
        assert isinstance(statement, Merge)
        assert len(statement.clauses) == count
        return time.process_time() - start

    base = min(seconds(300) for _ in range(3))
    assert seconds(3000) < 40 * base


def test_megabytes_of_values_are_read_in_seconds() -> None:
    row = "(12345, 'a name; it''s long (enough)', 1.5, DATE '2026-11-29', null, true), "
    text = f"INSERT INTO t VALUES {row * 60_000}(1, '', 2.5, current_date(), null, false)"
    start = time.process_time()
    statement = parse(text)
    assert isinstance(statement, InsertInto)
    assert statement.query.end == len(text) > 4_000_000
    assert time.process_time() - start < 5
