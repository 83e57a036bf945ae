"""CREATE, ALTER, DROP, RESTORE, SHOW and DESCRIBE of tables in a catalog."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import opal_spark
from opal_lake import layout
from opal_lake.definition.sql_schema import arrow_of_sql
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError, NotFoundError, TableExistsError
from opal_lake.operations.verb import operations_of
from opal_lake.storage import open_storage
from opal_lake.table import Table, begin_with_rows
from opal_spark.table import OpalTable
from tests.opal_spark.spark_sql.lake import Lake, lake

__all__ = ["lake"]
pytestmark = pytest.mark.spark

ORDERS = (
    "CREATE TABLE lake.shop.orders (id BIGINT PRIMARY KEY, at TIMESTAMP, total DECIMAL(10,2)) "
    "USING opal TBLPROPERTIES ('delta' = 'at')"
)


def columns_of(table: Table) -> list[tuple[str, str]]:
    return [(column["name"], column["type"]) for column in table.describe()["columns"]]


# CREATE TABLE


def test_create_table_with_all_parts(lake: Lake) -> None:
    row = lake.job(
        """
        CREATE TABLE lake.shop.`my orders` (
          `id,1` BIGINT, region STRING, at TIMESTAMP, seq INT,
          address STRUCT<city: STRING, `zip code`: INT>, tags MAP<STRING, ARRAY<INT>>,
          op STRING, PRIMARY KEY (`id,1`, region)
        ) USING opal
        PARTITIONED BY (region)
        TBLPROPERTIES (
          'delta' = 'at', 'tie_break' = 'seq', 'deletes' = 'op = \\'D\\'',
          'file_format' = 'orc', target_mb = 7, 'look_back' = '30d'
        )
        """
    )
    assert (row.operation, row.version) == ("create", 0)
    described = lake.table("shop/my orders").describe()
    assert described["keys"] == ["id,1", "region"]
    assert (described["delta"], described["tie_break"]) == ("at", ["seq"])
    assert described["deletes"] == "op = 'D'"
    assert (described["partition_by"], described["file_format"]) == (["region"], "orc")
    assert described["properties"] == {"target_mb": 7, "look_back": "30d"}
    assert dict(columns_of(lake.table("shop/my orders")))["address"] == (
        "struct<city: string, `zip code`: int>"
    )


def test_table_without_a_delta_orders_by_commits(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t (id INT, PRIMARY KEY (id)) USING opal")
    assert lake.table("t").describe()["delta"] == "_commit"
    path = lake.root / "by path"
    lake.sql(f"CREATE TABLE opal.`{path}` (id INT) TBLPROPERTIES ('keys' = 'id')")
    assert lake.table("by path").describe()["keys"] == ["id"]


def test_existing_table_is_an_error_or_accepted(lake: Lake) -> None:
    lake.sql(ORDERS)
    with pytest.raises(TableExistsError, match="IF NOT EXISTS"):
        lake.sql(ORDERS)
    row = lake.job(ORDERS.replace("TABLE", "TABLE IF NOT EXISTS"))
    assert (row.version, row.notes) == (
        None,
        ["lake.shop.orders exists already, and stays as it is"],
    )
    with pytest.raises(NotFoundError, match="CREATE OR REPLACE"):
        lake.sql("REPLACE TABLE lake.none (id INT PRIMARY KEY) USING opal")
    lake.sql("CREATE OR REPLACE TABLE lake.new (id INT PRIMARY KEY) USING opal")


def test_replaced_table_has_its_new_columns_and_rows_in_one_version(lake: Lake) -> None:
    lake.sql(ORDERS)
    lake.sql("INSERT INTO lake.shop.orders SELECT id, now(), 1 FROM range(3)")
    text = """
        CREATE OR REPLACE TABLE lake.shop.orders (
          id BIGINT PRIMARY KEY, total DOUBLE NOT NULL, at TIMESTAMP, note STRING DEFAULT 'none',
          CHECK (total > 0)
        ) USING opal TBLPROPERTIES ('delta' = 'at', 'target_mb' = 7)
        """
    row = lake.job(text, token="new")
    assert (row.operation, row.version, row.counts["deleted"]) == ("replace", 2, 3)
    assert lake.job(text, token="new").repeated
    table = lake.table("shop/orders")
    assert columns_of(table) == [
        ("id", "bigint"),
        ("total", "double"),
        ("at", "timestamp"),
        ("note", "string"),
    ]
    assert (table.describe()["properties"], table.read().num_rows) == ({"target_mb": 7}, 0)
    assert table.read(version=1).column_names == ["id", "at", "total"]
    assert table.read(version=1).num_rows == 3
    lake.sql("INSERT INTO lake.shop.orders (id, at, total) VALUES (1, now(), 2.5)")
    assert lake.sql("SELECT id, total, note FROM lake.shop.orders") == [(1, 2.5, "none")]
    with pytest.raises(InvalidInputError, match="total > 0"):
        lake.sql("INSERT INTO lake.shop.orders (id, at, total) VALUES (2, now(), 0)")


def test_query_that_replaces_a_table_may_read_it(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.t USING opal TBLPROPERTIES ('keys' = 'id') AS SELECT id FROM range(4)"
    )
    row = lake.job(
        "REPLACE TABLE lake.t USING opal TBLPROPERTIES ('keys' = 'id') "
        "AS SELECT id, CAST(id * 10 AS STRING) AS ten FROM lake.t WHERE id % 2 = 0"
    )
    counts = {name: row.counts[name] for name in ("inserted", "updated", "deleted")}
    assert counts == {"inserted": 0, "updated": 2, "deleted": 2}
    assert sorted(lake.sql("SELECT id, ten FROM lake.t")) == [(0, "0"), (2, "20")]
    assert sorted(lake.sql("SELECT * FROM lake.t VERSION AS OF 1")) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    "text, message",
    [
        ("(id BIGINT, at TIMESTAMP, PRIMARY KEY (id, at))", r"keys is \['id'\] in the table"),
        ("(id INT PRIMARY KEY, at TIMESTAMP)", "'id'.* is BIGINT in the table.* become INT"),
        ("(id BIGINT PRIMARY KEY, at TIMESTAMP) PARTITIONED BY (at)", "partition_by is"),
    ],
)
def test_table_is_not_replaced_by_one_of_other_keys(lake: Lake, text: str, message: str) -> None:
    lake.sql(ORDERS)
    properties = "TBLPROPERTIES ('delta' = 'at')"
    with pytest.raises(InvalidInputError, match=message) as raised:
        lake.sql(f"CREATE OR REPLACE TABLE lake.shop.orders {text} {properties}")
    assert "DROP TABLE lake.shop.orders and then CREATE TABLE" in str(raised.value)
    assert len([*lake.table("shop/orders").commits()]) == 1


def test_token_makes_a_repeated_creation_harmless(lake: Lake) -> None:
    first = lake.job(ORDERS, token="a")
    again = lake.job(ORDERS, token="a")
    assert (first.repeated, again.repeated, again.version) == (False, True, 0)
    with pytest.raises(TableExistsError):
        lake.sql(ORDERS, token="b")


@pytest.mark.parametrize(
    "text, message",
    [
        ("lake.t (id INT) USING opal", "has no key; add PRIMARY KEY"),
        ("lake.t USING opal TBLPROPERTIES ('keys' = 'id')", "has no columns"),
        ("lake.t (id INT PRIMARY KEY) TBLPROPERTIES ('keys' = 'id')", "leave out one"),
        ("lake.t (id INT PRIMARY KEY COMMENT 'x') USING opal", "keeps no COMMENT"),
        ("lake.t (id INT PRIMARY KEY) USING opal COMMENT 'x'", "keeps no COMMENT"),
        ("lake.t (id INT, CONSTRAINT p PRIMARY KEY (id)) USING opal", "without CONSTRAINT p"),
        (
            "lake.t (id INT PRIMARY KEY, a STRUCT<b: INT NOT NULL>) USING opal",
            "keep NOT NULL",
        ),
        ("lake.t (id INT PRIMARY KEY, a STRING COLLATE UTF8_LCASE) USING opal", "keep COLLATE"),
        ("lake.t (id VARCHAR(9) PRIMARY KEY) USING opal", "write STRING"),
        (
            "lake.t (id INT PRIMARY KEY, a INTERVAL DAY) USING opal",
            "type INTERVAL DAY is not supported",
        ),
        ("lake.t (id DOUBLE PRIMARY KEY) USING opal", "key column 'id' has type DOUBLE"),
        ("lake.t (id INT, PRIMARY KEY (no)) USING opal", "no column 'no'"),
        ("lake.t (id INT PRIMARY KEY) USING opal PARTITIONED BY (days(id))", "columns of its own"),
        ("lake.t (id INT PRIMARY KEY) USING opal PARTITIONED BY (day DATE)", "columns of its own"),
        ("lake.t (id INT PRIMARY KEY) USING opal PARTITIONED BY (no)", "no column 'no'"),
        ("lake.t (id INT PRIMARY KEY) USING opal LOCATION '/tmp/x'", "Leave LOCATION out"),
        ("lake.t (id INT PRIMARY KEY) TBLPROPERTIES ('target_mb' = 'x')", "target_mb"),
        ("lake.t (id INT PRIMARY KEY) TBLPROPERTIES ('target-mb' = 1)", "did you mean 'target_mb'"),
        ("lake.t (id INT PRIMARY KEY) TBLPROPERTIES ('delta' = 'no')", "no column 'no'"),
        ("lake.t (id INT PRIMARY KEY) TBLPROPERTIES ('keys' = '', 'x' = '')", "leave out one"),
        ("lake.t (id INT) TBLPROPERTIES ('keys' = ',')", "write the names of columns"),
        ("t (id INT PRIMARY KEY) USING opal", "not in a catalog of Opal tables"),
        ("lake.`..` (id INT PRIMARY KEY) USING opal", "cannot be a table"),
    ],
)
def test_table_that_cannot_be_is_refused(lake: Lake, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        lake.sql(f"CREATE TABLE {text}")
    assert not lake.root.exists()


def test_location_may_repeat_the_path(lake: Lake) -> None:
    lake.sql(
        f"CREATE TABLE lake.t (id INT PRIMARY KEY) USING opal LOCATION 'file://{lake.root}/t/'"
    )
    assert lake.table("t").describe()["version"] == 0


# CREATE TABLE AS SELECT


def test_create_as_select_takes_the_columns_of_the_query(lake: Lake) -> None:
    row = lake.job(
        "CREATE TABLE lake.a USING opal TBLPROPERTIES ('keys' = 'id') AS "
        "SELECT id, concat('n', id) AS name FROM range(3)",
        token="x",
    )
    assert (row.version, row.counts["inserted"]) == (1, 3)
    assert sorted(lake.table("a").read().to_pylist(), key=str) == [
        {"id": number, "name": f"n{number}"} for number in range(3)
    ]
    lake.sql(
        "CREATE TABLE lake.b TBLPROPERTIES ('keys' = 'id', 'target_mb' = 5) AS "
        "SELECT * FROM lake.a WHERE id > :least",
        {"least": 1},
    )
    assert lake.table("b").read()["id"].to_pylist() == [2]
    again = lake.job(
        "CREATE TABLE lake.a TBLPROPERTIES ('keys' = 'id') AS SELECT 1 AS id", token="x"
    )
    assert (again.repeated, again.version) == (True, 1)


def test_create_as_an_empty_query_makes_an_empty_table(lake: Lake) -> None:
    row = lake.job("CREATE TABLE lake.a TBLPROPERTIES ('keys' = 'id') AS SELECT id FROM range(0)")
    assert row.version == 1
    assert lake.table("a").read().num_rows == 0


@pytest.mark.parametrize(
    "query, message",
    [
        ("SELECT explode(array(1, 1)) AS id", "more than once"),
        ("SELECT CAST(NULL AS INT) AS id", "null"),
        ("SELECT CAST(raise_error('stop') AS INT) AS id", "stop"),
    ],
)
def test_failed_query_leaves_no_table(lake: Lake, query: str, message: str) -> None:
    create = "CREATE TABLE lake.a TBLPROPERTIES ('keys' = 'id') AS "
    with pytest.raises(Exception, match=message) as raised:
        lake.sql(create + query)
    assert "latest" not in str(raised.value)
    with pytest.raises(NotFoundError, match="does not exist, or is empty"):
        lake.sql("SHOW TABLES IN lake")
    lake.sql("CREATE TABLE lake.a (id STRING PRIMARY KEY)")
    assert lake.table("a").read().column_names == ["id"]


def test_unfinished_table_can_be_dropped_and_is_not_accepted(lake: Lake) -> None:
    layout_of_it = TableLayout(keys=["id"], delta="_commit")
    spec = plan_spec(arrow_of_sql("id BIGINT"), layout_of_it)
    begin_with_rows(open_storage(str(lake.root / "a")), spec)
    with pytest.raises(TableExistsError, match=r"an unfinished table.*DROP TABLE it"):
        lake.sql("CREATE TABLE IF NOT EXISTS lake.a (id BIGINT PRIMARY KEY) USING opal")
    lake.sql("DROP TABLE lake.a")
    lake.sql("CREATE TABLE IF NOT EXISTS lake.a (id BIGINT PRIMARY KEY) USING opal")
    assert lake.table("a").describe()["version"] == 0


# ALTER TABLE


def test_columns_change_in_one_commit_each(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.t (id INT PRIMARY KEY, a STRUCT<b: INT, c: STRING>, n INT, x DATE) "
        "USING opal"
    )
    lake.sql("ALTER TABLE lake.t ADD COLUMNS (d DOUBLE FIRST, a.e BIGINT AFTER b, f STRING)")
    lake.sql("ALTER TABLE lake.t RENAME COLUMN a.c TO `c c`")
    lake.sql("ALTER TABLE lake.t DROP COLUMN IF EXISTS x, no, a.no")
    lake.sql("ALTER TABLE lake.t ALTER COLUMN n TYPE BIGINT, a.b TYPE BIGINT")
    lake.sql("ALTER TABLE lake.t ALTER COLUMN f AFTER id")
    row = lake.job("ALTER TABLE lake.t CHANGE COLUMN n n BIGINT FIRST")
    assert columns_of(lake.table("t")) == [
        ("n", "bigint"),
        ("d", "double"),
        ("id", "int"),
        ("f", "string"),
        ("a", "struct<b: bigint, e: bigint, `c c`: string>"),
        ("_commit", "timestamp"),
    ]
    assert row.version == 6
    assert lake.job("ALTER TABLE lake.t DROP COLUMN IF EXISTS no").notes == ["nothing to change"]


def test_alter_reads_types_as_create_does(lake: Lake) -> None:
    types = "TIMESTAMP, b STRUCT<`a b`: DECIMAL(10, /* digits */ 2), `c``d`: TIMESTAMP>"
    lake.spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        lake.sql(f"CREATE TABLE lake.a (id INT PRIMARY KEY, a {types}) USING opal")
        lake.sql("CREATE TABLE lake.b (id INT PRIMARY KEY, day DATE) USING opal")
        lake.sql(f"ALTER TABLE lake.b ADD COLUMNS (a {types})")
        lake.sql("ALTER TABLE lake.b ALTER COLUMN day TYPE TIMESTAMP")
    finally:
        lake.spark.conf.unset("spark.sql.timestampType")
    created, altered = (dict(columns_of(lake.table(name))) for name in "ab")
    assert altered["day"] == created["a"] == "timestamp_ntz"
    assert altered["a"] == created["a"]
    assert altered["b"] == created["b"]


def test_constraints_hold_and_change(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.t (id INT NOT NULL PRIMARY KEY, n INT NOT NULL, a STRING, "
        "CHECK (n > 0), CONSTRAINT check_2 CHECK (a <> 'it''s)'), CHECK (n < 9)) "
        "USING opal"
    )
    spec = lake.table("t").snapshot_at().spec
    assert [column.name for column in spec.not_null] == ["n"]
    assert spec.constraints == {
        "check_1": "n > 0",
        "check_2": "a <> 'it''s)'",
        "check_3": "n < 9",
    }
    with pytest.raises(InvalidInputError, match="check_1"):
        lake.sql("INSERT INTO lake.t VALUES (1, 0, 'x')")
    lake.sql("ALTER TABLE lake.t ALTER COLUMN n DROP NOT NULL, a SET NOT NULL")
    lake.sql("ALTER TABLE lake.t ADD CHECK (n <> 5)")
    lake.sql("ALTER TABLE lake.t DROP CONSTRAINT CHECK_1")
    assert lake.job("ALTER TABLE lake.t DROP CONSTRAINT IF EXISTS none").version is None
    lake.sql("ALTER TABLE lake.t ADD CONSTRAINT most CHECK (n < 100)")
    lake.sql("ALTER TABLE lake.t ADD COLUMN b INT NOT NULL")
    spec = lake.table("t").snapshot_at().spec
    assert [column.name for column in spec.not_null] == ["a", "b"]
    assert [*spec.constraints] == ["check_2", "check_3", "check_4", "most"]
    for action, message in [
        ("ADD CONSTRAINT most CHECK (n < 1)", "exists already"),
        ("ADD CONSTRAINT bad CHECK (rand() > 0)", "rand"),
        ("ADD CONSTRAINT bad CHECK (no > 0)", "no column 'no'"),
        ("DROP CONSTRAINT no", "no constraint 'no'"),
        ("ALTER COLUMN id DROP NOT NULL", "key"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            lake.sql(f"ALTER TABLE lake.t {action}")


def test_a_text_in_a_constraint_is_what_spark_reads(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.t (id INT PRIMARY KEY, s STRING, g STRING GENERATED ALWAYS AS "
        "(concat(s, 'x\\\\n')), CONSTRAINT a CHECK (s <> 'a\\\\b' AND s <> \"it's\"), "
        "CONSTRAINT b CHECK (s NOT LIKE '%\\_' AND s <> r'c\\d')) USING opal"
    )
    spec = lake.table("t").snapshot_at().spec
    assert spec.constraints == {
        "a": "s <> 'a\\b' AND s <> 'it''s'",
        "b": "s NOT LIKE '%\\_' AND s <> 'c\\d'",
    }
    for value in (r"'a\\b'", '"it\'s"', "'x_'", r"r'c\d'"):
        with pytest.raises(InvalidInputError, match="is violated"):
            lake.sql(f"INSERT INTO lake.t (id, s) VALUES (1, {value})")
    lake.sql(r"INSERT INTO lake.t (id, s) VALUES (1, 'a\\\\b')")
    assert lake.sql("SELECT s, g FROM lake.t") == [("a\\\\b", "a\\\\bx\\n")]
    lake.sql(r"ALTER TABLE lake.t ADD CONSTRAINT c CHECK (s <> '$\{x}')")
    with pytest.raises(InvalidInputError, match=r"Spark replaces \$\{name\} in a statement"):
        lake.sql("ALTER TABLE lake.t ADD CONSTRAINT d CHECK (s <> '${x}')")
    [(text,)] = lake.sql("SHOW CREATE TABLE lake.t")
    lake.sql(text.replace("lake.t ", "lake.copy "))
    assert lake.table("copy").snapshot_at().spec == lake.table("t").snapshot_at().spec


def test_a_time_in_a_constraint_has_a_zone_in_a_session_outside_of_utc(lake: Lake) -> None:
    check = "ALTER TABLE lake.t ADD CONSTRAINT {} CHECK (at > TIMESTAMP '2026-01-01{}')"
    lake.sql("CREATE TABLE lake.t (id INT PRIMARY KEY, at TIMESTAMP) USING opal")
    lake.spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        lake.sql(check.format("a", ""))
        lake.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        with pytest.raises(InvalidInputError, match="this session reads it in Asia/Tokyo"):
            lake.sql(check.format("b", " 09:00:00"))
        lake.sql(check.format("b", " 09:00:00+09:00"))
        [(text,)] = lake.sql("SHOW CREATE TABLE lake.t")
        lake.sql(text.replace("lake.t ", "lake.copy "))
    finally:
        lake.spark.conf.unset("spark.sql.session.timeZone")
    copied = lake.table("copy").snapshot_at().spec.constraints
    assert copied == {
        "a": "at > TIMESTAMP '2026-01-01 00:00:00+00:00'",
        "b": "at > TIMESTAMP '2026-01-01 09:00:00+09:00'",
    }


def test_properties_are_set_and_unset(lake: Lake) -> None:
    lake.sql(ORDERS)
    lake.sql("ALTER TABLE lake.shop.orders SET TBLPROPERTIES ('target_mb' = '9', small_files = 3)")
    assert lake.table("shop/orders").describe()["properties"] == {"target_mb": 9, "small_files": 3}
    lake.sql("ALTER TABLE lake.shop.orders UNSET TBLPROPERTIES IF EXISTS ('target_mb', 'none')")
    assert lake.table("shop/orders").describe()["properties"] == {"small_files": 3}


@pytest.mark.parametrize(
    "action, message",
    [
        ("DROP COLUMN id", "the key of the table needs it"),
        ("DROP COLUMN no", "no column 'no'"),
        ("ADD COLUMN total INT", "exists already"),
        ("ADD COLUMN a INT, b", "a type"),
        ("ADD COLUMN a INT DEFAULT 'x'", "the default of column 'a' of type INT"),
        ("ADD COLUMN a DATE DEFAULT current_date()", "is not a constant"),
        ("ADD COLUMN a INT COMMENT 'x'", "keeps no COMMENT"),
        ("ADD COLUMN a INTERVAL DAY", "column 'a': type INTERVAL DAY is not supported in a table"),
        ("ADD COLUMN a NOTHING", "NOTHING"),
        ("ADD COLUMN a DECIMAL(10.2)", "10.2"),
        ("ADD COLUMN a ARRAY<VARCHAR(3)>", "VARCHAR(3) is not a type of a table"),
        ("ADD COLUMN a INT AFTER no", "after='no'"),
        ("ALTER COLUMN id TYPE INT", "cannot become"),
        ("ALTER COLUMN id COMMENT 'x'", "keeps no COMMENT"),
        ("ALTER COLUMN id SET DEFAULT 1", "is a key or the delta"),
        ("RENAME COLUMN id TO total", "total"),
        ("RENAME TO lake.other", "is its folder"),
        ("ADD PRIMARY KEY (total)", "never change"),
        ("SET TBLPROPERTIES ('delta' = 'id')", "never changes"),
        ("SET TBLPROPERTIES ('no' = '1')", "property 'no' is unknown"),
        ("UNSET TBLPROPERTIES ('no')", "property 'no' is unknown"),
        ("UNSET TBLPROPERTIES IF EXISTS ('keys')", "never changes"),
    ],
)
def test_change_that_does_not_fit_changes_nothing(lake: Lake, action: str, message: str) -> None:
    lake.sql(ORDERS)
    before = lake.table("shop/orders").describe()
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        lake.sql(f"ALTER TABLE lake.shop.orders {action}")
    assert lake.table("shop/orders").describe() == before


def test_defaults_fill_existing_and_new_rows(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.t (id INT PRIMARY KEY, n INT DEFAULT -1, "
        "at TIMESTAMP, day DATE GENERATED ALWAYS AS (date(at))) USING opal"
    )
    lake.sql("INSERT INTO lake.t (id, at) VALUES (1, TIMESTAMP '2026-01-31 12:00:00Z')")
    lake.sql(
        "ALTER TABLE lake.t ADD COLUMNS (a STRING DEFAULT 'it\\'s\\n', d DOUBLE DEFAULT 0.1, "
        "w TIMESTAMP DEFAULT TIMESTAMP '2026-01-01 00:00:00+02:00', x BINARY DEFAULT X'0f')"
    )
    lake.sql("ALTER TABLE lake.t ALTER COLUMN a SET DEFAULT 'new', n DROP DEFAULT")
    lake.sql("INSERT INTO lake.t (id) VALUES (2)")
    old, new = lake.table("t").read().sort_by("id").to_pylist()
    assert old == {
        "id": 1,
        "n": -1,
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "day": date(2026, 1, 31),
        "a": "it's\n",
        "d": 0.1,
        "w": datetime(2025, 12, 31, 22, tzinfo=UTC),
        "x": b"\x0f",
    }
    assert (new["n"], new["a"], new["d"], new["day"]) == (None, "new", 0.1, None)
    shown = lake.sql("SELECT n, a, d, x, unix_seconds(w) FROM lake.t ORDER BY id")
    assert shown[0] == (-1, "it's\n", 0.1, b"\x0f", int(old["w"].timestamp()))


def test_a_default_may_be_a_parameter_but_no_function(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t (id INT PRIMARY KEY, n INT DEFAULT :n) USING opal", {"n": 7})
    lake.sql("INSERT INTO lake.t (id) VALUES (1)")
    assert lake.sql("SELECT n FROM lake.t") == [(7,)]
    add = "ALTER TABLE lake.t ADD COLUMN a STRING DEFAULT concat(':', current_user())"
    with pytest.raises(InvalidInputError, match="is not a constant"):
        lake.sql(add, {"n": 7})


def test_shown_defaults_make_equal_defaults(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.t (id INT PRIMARY KEY, a STRING DEFAULT 'it\\'s\\n', b BOOLEAN DEFAULT "
        "true, c DECIMAL(9,2) DEFAULT 1.50, d DOUBLE DEFAULT 1e-7, e FLOAT DEFAULT 0.1, f DATE "
        "DEFAULT DATE '2026-01-31', g TIMESTAMP DEFAULT TIMESTAMP '2026-01-31 01:02:03.4Z', "
        "h TIMESTAMP_NTZ DEFAULT TIMESTAMP_NTZ '2026-01-31 01:02:03', i BINARY DEFAULT X'0F', "
        "j BIGINT DEFAULT -9223372036854775807, k DATE GENERATED ALWAYS AS (date(g)), "
        "l STRING DEFAULT 'a\\\\b\"$\\{x}') USING opal"
    )
    [[text]] = lake.sql("SHOW CREATE TABLE lake.t")
    lake.sql(text.replace("lake.t ", "lake.copy ", 1))
    assert lake.table("copy").snapshot_at().spec.schema == lake.table("t").snapshot_at().spec.schema
    lake.sql("INSERT INTO lake.copy (id) VALUES (1)")
    assert lake.sql("SELECT l FROM lake.copy") == [('a\\b"${x}',)]


# DROP TABLE and RESTORE


def test_drop_deletes_the_folder_of_a_table(lake: Lake) -> None:
    lake.sql(ORDERS)
    assert lake.job("DROP TABLE lake.shop.orders").counts["files"] > 0
    assert [*(lake.root / "shop").iterdir()] == []
    with pytest.raises(NotFoundError, match="IF EXISTS accepts that"):
        lake.sql("DROP TABLE lake.shop.orders")
    assert lake.job("DROP TABLE IF EXISTS lake.shop.orders").notes == [
        "lake.shop.orders does not exist"
    ]


def test_savepoint_holds_a_table_unless_it_is_purged(lake: Lake) -> None:
    lake.sql(ORDERS)
    lake.table("shop/orders").savepoint("month")
    with pytest.raises(InvalidInputError, match="PURGE"):
        lake.sql("DROP TABLE lake.shop.orders")
    lake.sql("DROP TABLE lake.shop.orders PURGE")
    assert [*(lake.root / "shop").iterdir()] == []


def test_folder_of_other_files_is_not_dropped(lake: Lake) -> None:
    (lake.root / "files").mkdir(parents=True)
    (lake.root / "files" / "a.parquet").write_bytes(b"x")
    for purge in ("", " PURGE"):
        with pytest.raises(NotFoundError, match="not an Opal table"):
            lake.sql(f"DROP TABLE lake.files{purge}")
    assert (lake.root / "files" / "a.parquet").exists()


def test_restore_shows_an_older_version(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t TBLPROPERTIES ('keys' = 'id') AS SELECT id FROM range(3)")
    table = lake.table("t")
    table.savepoint("first")
    moment = table.history(1)[0]["committed_at"]
    for text, args in [
        ("VERSION AS OF 1", None),
        ("VERSION AS OF 'first'", None),
        ("VERSION AS OF :v", {"v": 1}),
        ("TIMESTAMP AS OF :at", {"at": moment}),
        (f"TIMESTAMP AS OF '{moment}'", None),
    ]:
        table.delete()
        assert lake.table("t").read().num_rows == 0
        row = lake.job(f"RESTORE TABLE lake.t TO {text}", args)
        assert (row.operation, row.counts["rows_restored"]) == ("restore", 3), text
        assert lake.table("t").read().num_rows == 3
    with pytest.raises(NotFoundError, match="no version 99"):
        lake.sql("RESTORE lake.t TO VERSION AS OF 99")
    with pytest.raises(NotFoundError, match="no savepoint 'no'"):
        lake.sql("RESTORE lake.t TO VERSION AS OF 'no'")


# SHOW and DESCRIBE


def test_show_tables_lists_the_tables_of_a_namespace(lake: Lake) -> None:
    for name in ("shop.orders", "shop.users", "shop.`x y`", "top", "shop.deep.nested"):
        lake.sql(f"CREATE TABLE lake.{name} (id INT PRIMARY KEY) USING opal")
    (lake.root / "shop" / "files").mkdir()

    def shown(text: str) -> list[Any]:
        return [name for _, name, _ in lake.sql(f"SHOW TABLES {text}")]

    assert shown("IN lake.shop") == ["orders", "users", "x y"]
    assert shown("IN lake") == ["top"]
    assert shown("FROM lake.shop.deep") == ["nested"]
    assert shown("IN lake.shop LIKE 'o*|X*'") == ["orders", "x y"]
    assert lake.sql("SHOW TABLES IN lake.shop 'users'") == [("lake.shop", "users", False)]
    for text in ("TABLES IN lake.none", "NAMESPACES IN lake.none"):
        with pytest.raises(NotFoundError, match=r"lake\.none: .*/none does not exist, or is empty"):
            lake.sql(f"SHOW {text}")


def test_show_namespaces_lists_the_folders_that_are_no_tables(lake: Lake) -> None:
    for name in ("shop.orders", "top", "`my shop`.deep.t"):
        lake.sql(f"CREATE TABLE lake.{name} (id INT PRIMARY KEY) USING opal")
    (lake.root / "_hidden").mkdir()
    (lake.root / "_hidden" / "file").touch()
    assert lake.sql("SHOW NAMESPACES IN lake") == [("lake.`my shop`",), ("lake.shop",)]
    assert lake.sql("SHOW SCHEMAS FROM lake LIKE 's*'") == [("lake.shop",)]
    assert lake.sql("SHOW DATABASES IN lake.`my shop`") == [("lake.`my shop`.deep",)]
    assert lake.sql("SHOW NAMESPACES IN lake.shop") == []
    assert ("default",) in lake.sql("SHOW NAMESPACES")


def test_show_create_table_makes_an_equal_table(lake: Lake) -> None:
    lake.sql(
        """
        CREATE TABLE lake.a (
          `k,1` INT, `b``c` STRING, at DATE,
          s STRUCT<`x y`: INT, z: MAP<STRING, ARRAY<DECIMAL(9,1)>>> NOT NULL,
          CONSTRAINT `some` CHECK (s.`x y` > 0 OR `b``c` = 'a''b')
        ) USING opal PARTITIONED BY (`b``c`)
        TBLPROPERTIES ('keys' = '`k,1`,at', 'delta' = 'at', 'tie_break' = '`k,1`',
          'deletes' = "`b``c` = 'it''s \\\\'", target_mb = 3, file_format = 'orc')
        """
    )
    [(text,)] = lake.sql("SHOW CREATE TABLE lake.a")
    lake.sql(text.replace("lake.a", "lake.b"))
    first, second = (lake.table(name).snapshot_at().spec for name in "ab")
    assert first == second
    [(again,)] = lake.sql("SHOW CREATE TABLE lake.b")
    assert again == text.replace("lake.a", "lake.b")


def test_show_properties(lake: Lake) -> None:
    lake.sql(ORDERS)
    lake.sql("ALTER TABLE lake.shop.orders SET TBLPROPERTIES ('target_mb' = 9)")
    assert lake.sql("SHOW TBLPROPERTIES lake.shop.orders") == [
        ("delta", "at"),
        ("file_format", "parquet"),
        ("keys", "id"),
        ("target_mb", "9"),
    ]
    assert lake.sql("SHOW TBLPROPERTIES lake.shop.orders (target_mb)") == [("target_mb", "9")]
    assert lake.sql("SHOW TBLPROPERTIES lake.shop.orders ('small_files')") == [
        ("small_files", "16")
    ]
    with pytest.raises(InvalidInputError, match="property 'no' is unknown"):
        lake.sql("SHOW TBLPROPERTIES lake.shop.orders ('no')")


def test_describe(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.t (id INT PRIMARY KEY, day DATE, a STRUCT<b: INT>) USING opal "
        "PARTITIONED BY (day)"
    )
    columns = [("id", "int", None), ("day", "date", None), ("a", "struct<b: int>", None)]
    partition = [
        ("# Partition Information", "", ""),
        ("# col_name", "data_type", "comment"),
        ("day", "date", None),
    ]
    assert lake.sql("DESCRIBE lake.t") == columns + partition
    assert lake.sql("DESC TABLE lake.t a.b") == [("a.b", "int", None)]
    extended = {row[0]: row[1] for row in lake.sql("DESCRIBE EXTENDED lake.t")}
    assert extended["Location"] == str(lake.root / "t")
    assert extended["Table Properties"] == "[delta=_commit, file_format=parquet, keys=id]"
    lake.sql(
        "CREATE TABLE lake.rules (id INT PRIMARY KEY, a STRING NOT NULL DEFAULT 'x', at TIMESTAMP, "
        "day DATE GENERATED ALWAYS AS (date(at)), CONSTRAINT positive CHECK (id > 0)) USING opal"
    )
    assert lake.sql("DESCRIBE lake.rules")[4:] == [
        ("# Column Default Values", "", ""),
        ("a", "string", "'x'"),
        ("# Generated Columns", "", ""),
        ("day", "date", "date(at)"),
        ("# Constraints", "", ""),
        ("a", "NOT NULL", ""),
        ("positive", "CHECK (id > 0)", ""),
    ]
    with pytest.raises(InvalidInputError, match="no column 'no'"):
        lake.sql("DESCRIBE lake.t no")
    with pytest.raises(NotFoundError, match=r"lake\.none"):
        lake.sql("DESCRIBE lake.none")


def test_describe_history(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t TBLPROPERTIES ('keys' = 'id') AS SELECT 1 AS id", token="x")
    rows = lake.sql("DESCRIBE HISTORY lake.t")
    assert [(row[0], row[2], row[5]) for row in rows] == [(1, "insert", "x"), (0, "create", None)]
    assert [row[0] for row in lake.sql("DESCRIBE HISTORY lake.t LIMIT 1")] == [1]
    assert lake.sql("DESCRIBE HISTORY lake.t LIMIT 0") == []
    with pytest.raises(InvalidInputError, match="changes nothing"):
        lake.sql("DESCRIBE HISTORY lake.t", token="x")


# CALL


@pytest.fixture
def small(lake: Lake) -> Lake:
    for number in range(3):
        if number == 0:
            lake.sql("CREATE TABLE lake.shop.t TBLPROPERTIES ('keys' = 'id') AS SELECT 0L AS id")
        else:
            lake.table("shop/t").insert(pa.table({"id": [number]}))
    return lake


def test_verbs_of_a_table_are_procedures(small: Lake) -> None:
    row = small.job("CALL lake.system.compact(table => 'shop.t', target_mb => 8)")
    assert (row.operation, len(small.table("shop/t").files())) == ("compact", 1)
    row = small.job("CALL lake.system.Savepoint('lake.shop.t', :name)", {"name": "month"})
    assert row.operation == "savepoint"
    with pytest.raises(InvalidInputError, match="savepoint takes no token"):
        small.sql("CALL lake.system.savepoint('shop.t', 'b')", token="s")
    row = small.job("CALL lake.system.set_properties('shop.t', map('small_files', 9))", token="p")
    assert not row.repeated
    row = small.job("CALL lake.system.set_properties('shop.t', map('small_files', 9))", token="p")
    assert row.repeated
    assert small.table("shop/t").describe()["properties"] == {"small_files": 9}
    small.sql("CALL lake.system.set_properties('shop.t', map('small_files', null))")
    assert small.table("shop/t").describe()["properties"] == {}
    row = small.job(
        "CALL lake.system.alter(table => ?, changes => array(map('add', 'a', 'type', 'int')))",
        [f"opal.`{small.root / 'shop' / 't'}`"],
    )
    assert row.counts["added"] == 1
    added = "named_struct('add', 'b', 'type', 'int', 'drop', null)"
    dropped = "named_struct('add', null, 'type', null, 'drop', 'a')"
    small.sql(f"CALL lake.system.alter('shop.t', array({added}, {dropped}))")
    assert [name for name, _ in columns_of(small.table("shop/t"))] == ["id", "_commit", "b"]
    row = small.job("CALL lake.system.retain('shop.t', window => INTERVAL 7 DAYS, dry_run => true)")
    assert row.operation == "retain"
    assert small.sql("CALL lake.system.check('shop.t', quick => true)") == []
    assert len(small.sql("CALL lake.system.history('shop.t', 2)")) == 2
    assert len(small.sql("CALL lake.system.read('shop.t', where => 'id > 0')")) == 2
    [described] = small.sql("CALL lake.system.describe('shop.t')")
    assert str(small.root) in described[0]


def test_partitions_are_dropped_by_a_procedure(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t (id INT PRIMARY KEY, d DATE, n INT) PARTITIONED BY (d, n)")
    lake.sql(
        "INSERT INTO lake.t VALUES (1, DATE '2026-01-01', 1), (2, NULL, 1), (3, NULL, 2), "
        "(4, DATE '2026-01-01', 2)"
    )
    for _ in range(2):
        row = lake.job("CALL lake.system.drop_partition('t', map('d', null))", token="null")
        assert (row.operation, row.counts["deleted"]) == ("drop_partition", 2)
    assert row.repeated
    values = "named_struct('d', DATE '2026-01-01', 'n', 2)"
    assert lake.job(f"CALL lake.system.drop_partition('t', {values})").counts["deleted"] == 1
    values = "named_struct('d', null, 'n', 1)"
    assert lake.job(f"CALL lake.system.drop_partition('t', {values})").counts["deleted"] == 0
    assert lake.sql("SELECT id FROM lake.t") == [(1,)]


def test_values_without_a_name_are_those_of_the_methods(small: Lake) -> None:
    by_name = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
    for name, operation in operations_of(OpalTable).items():
        parameters = signature(getattr(OpalTable, name)).parameters.values()
        in_order = [part.name for part in parameters if part.kind not in by_name]
        assert in_order == ["self", *operation.position_names()]
    row = small.job("CALL lake.system.delete('shop.t', 'id = 1')")
    assert row.counts["deleted"] == 1
    assert small.sql("SELECT id FROM lake.shop.t ORDER BY id") == [(0,), (2,)]
    with pytest.raises(InvalidInputError, match="a condition is a text"):
        small.sql("CALL lake.system.delete('shop.t', 5)")
    with pytest.raises(InvalidInputError, match="where is NULL; leave it out for all rows"):
        small.sql("CALL lake.system.delete('shop.t', where => CAST(NULL AS STRING))")


def test_get_returns_the_rows_of_the_keys(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.t (id BIGINT PRIMARY KEY, price DECIMAL(10,2), at TIMESTAMP, "
        "local TIMESTAMP_NTZ, place STRUCT<city: STRING>, tags MAP<STRING, ARRAY<INT>>) USING opal"
    )
    lake.sql(
        "INSERT INTO lake.t VALUES (1, 1.5, NULL, NULL, NULL, NULL), (2, 2.68, "
        "TIMESTAMP '2026-01-01 00:00:00Z', TIMESTAMP_NTZ '2026-01-01 07:00:00', "
        "named_struct('city', 'Delft'), map('a', array(1, NULL)))"
    )
    chosen = "CALL lake.system.get('t', array(map('id', 2L)), columns => array('id', 'price'))"
    assert lake.sql(chosen) == [(2, Decimal("2.68"))]
    rows = opal_spark.sql(lake.spark, "CALL lake.system.get('t', array(map('id', 2L)))")
    expected = opal_spark.sql(lake.spark, "SELECT * FROM lake.t WHERE id = 2")
    assert rows.dtypes == expected.dtypes
    assert rows.collect() == expected.collect()
    named = "CALL lake.system.read('t', columns => array('id', '_commit'))"
    assert opal_spark.sql(lake.spark, named).columns == ["id", "_commit"]
    none = opal_spark.sql(lake.spark, "CALL lake.system.get('t', array(map('id', 9L)))")
    assert (none.dtypes, none.collect()) == (expected.dtypes, [])


def test_time_of_an_argument_is_exact_in_any_zone(small: Lake) -> None:
    versions = small.table("shop/t").history()
    moment = versions[1]["committed_at"]
    small.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        row = small.job(
            "CALL lake.system.restore('shop.t', timestamp => CAST(:at AS TIMESTAMP))",
            {"at": moment},
        )
    finally:
        small.spark.conf.unset("spark.sql.session.timeZone")
    assert row.notes[0].startswith(f"version {versions[1]['version']} ")


@pytest.mark.parametrize(
    "text, message",
    [
        ("lake.system.none('shop.t')", "the procedures of lake.system are"),
        ("lake.compact('shop.t')", "is not a procedure"),
        ("lake.system.compact()", "needs a table"),
        ("lake.system.compact(7)", "needs a table"),
        ("lake.system.compact('shop.t', table => 'x')", "has table twice"),
        ("lake.system.compact('shop.t', 8)", "write name => 8, with one of target_mb, mode"),
        ("lake.system.describe('shop.t', 1)", "has 1 after them; leave it out"),
        ("lake.system.update('shop.t', map('id', 'id'), 'id = 1')", "with one of tries, where"),
        ("lake.system.compact(table => 'shop.t', 'minor')", "name it as well"),
        ("lake.system.compact('shop.t', no => 1)", "its arguments are table, "),
        ("lake.system.compact('shop.t', target_mb => 'x')", "target_mb"),
        ("lake.system.compact('shop.t', mode => 'major')", "look_back"),
        ("lake.system.savepoint('shop.t')", "needs the argument name"),
        ("lake.system.insert('shop.t', 'x')", "statement MERGE INTO t USING source ON keys"),
        ("lake.system.upsert('shop.t')", "statement INSERT INTO t query"),
        ("lake.system.overwrite('shop.t')", "statement INSERT OVERWRITE t query"),
        ("lake.system.merge('shop.t')", "statement MERGE INTO t USING source ON condition"),
        ("lake.system.ingest('shop.t')", "statement INSERT INTO t query, or call ingest"),
        ("lake.system.commits('shop.t')", "DESCRIBE HISTORY"),
        ("lake.system.compact('shop.t', target_mb => (SELECT max(id) FROM lake.a))", "parameter"),
        ("lake.system.compact('a b')", "the end of the name"),
    ],
)
def test_call_that_does_not_fit_is_refused(lake: Lake, text: str, message: str) -> None:
    lake.sql("CREATE TABLE lake.shop.t (id INT PRIMARY KEY) USING opal")
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        lake.sql(f"CALL {text}")


def test_paths_without_a_table_are_told(lake: Lake, tmp_path: Path) -> None:
    for text in (
        "CALL lake.system.compact('none')",
        "ALTER TABLE lake.none ADD COLUMN a INT",
        "SHOW CREATE TABLE lake.none",
        "RESTORE lake.none TO VERSION AS OF 1",
    ):
        with pytest.raises(NotFoundError, match="not an Opal table"):
            lake.sql(text)
    assert not (tmp_path / layout.META).exists()
