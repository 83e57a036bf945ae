"""Hints: the statement to write in place of one that Opal tables do not take."""

from opal_lake.errors import InvalidInputError
from opal_lake.sql.cursor import Cursor
from opal_lake.sql.lexer import QUOTED, WORD, words
from opal_lake.sql.statements import TableName

NAMESPACES = words("SCHEMA SCHEMAS DATABASE DATABASES NAMESPACE NAMESPACES")
_OF_NAMESPACES = {
    "CREATE": "a namespace is a folder, which exists as soon as it has a table: create the table",
    "DROP": "a namespace is a folder, which ends with its last table: write DROP TABLE for each",
    "ALTER": "a namespace is a folder, and keeps no properties and no place of its own",
    "DESCRIBE": "a namespace is a folder; write SHOW TABLES IN its name",
    "DESC": "a namespace is a folder; write SHOW TABLES IN its name",
}
_VIEW = (
    "for a view, write opal_spark.sql(spark, 'SELECT ...').createOrReplaceTempView('name'), which "
    "reads the version of now"
)
_LOG = "the log of a table lists its files and their statistics; leave the statement out"
_CACHE = "write opal_spark.sql(spark, 'SELECT ...').cache()"
_FILES = "write INSERT INTO t SELECT * FROM parquet.`path`, or `opal ingest`"
_VALUE = "pass the value as a parameter: opal_spark.sql(spark, text, {'name': value})"
_NEWEST = "each statement reads the newest version; leave it out"
# By the first words of a statement; longer ones come first
_HINTS: tuple[tuple[str, str], ...] = (
    ("ALTER VIEW", _VIEW),
    ("ANALYZE", _LOG),
    ("CACHE", _CACHE),
    ("CLEAR CACHE", _CACHE),
    ("COMMENT", "a table keeps no comments; leave it out"),
    ("CONVERT", "write `opal bootstrap`, which makes a table of existing files"),
    ("COPY", _FILES),
    ("CREATE EXTERNAL TABLE", "write CREATE TABLE: the name of a table is its folder"),
    ("DECLARE", _VALUE),
    ("DESC DETAIL", "write DESCRIBE EXTENDED t"),
    ("DESCRIBE DETAIL", "write DESCRIBE EXTENDED t"),
    ("DROP VIEW", "a catalog has tables alone; write DROP TABLE"),
    ("FROM", "write one INSERT INTO t SELECT for each table"),
    ("FSCK", _LOG),
    ("INSERT", "write INSERT INTO t, INSERT OVERWRITE t or INSERT INTO t REPLACE WHERE"),
    ("LOAD", _FILES),
    ("MSCK", _LOG),
    ("REFRESH", _NEWEST),
    ("REPAIR", _LOG),
    ("SET VAR", _VALUE),
    ("SET VARIABLE", _VALUE),
    ("SHOW COLUMNS", "write DESCRIBE t"),
    ("SHOW CREATE TABLE", "write SHOW CREATE TABLE t without AS SERDE"),
    ("SHOW PARTITIONS", "write SELECT DISTINCT with the partition columns, FROM t"),
    ("SHOW TABLE EXTENDED", "write DESCRIBE EXTENDED t for each table"),
    ("SHOW", "a catalog has namespaces and tables: write SHOW NAMESPACES IN or SHOW TABLES IN"),
    ("TRUNCATE", "write DELETE FROM t"),
    ("UNCACHE", _CACHE),
    (
        "USE",
        (
            "the current catalog stays one of Spark; write the whole names of tables, such as "
            "lake.shop.orders"
        ),
    ),
    (
        "WITH",
        (
            "write WITH after the verb: INSERT INTO t WITH ... SELECT, or MERGE INTO t USING "
            "(WITH ... SELECT ...)"
        ),
    ),
)
# By the words after the name in ALTER TABLE t
_ALTER_HINTS: tuple[tuple[str, str], ...] = (
    ("ADD PARTITION", "a partition exists as soon as it has rows; leave the statement out"),
    ("ADD IF NOT EXISTS", "a partition exists as soon as it has rows; leave the statement out"),
    ("RECOVER", _LOG),
    (
        "REPLACE COLUMNS",
        "write ADD COLUMN, DROP COLUMN and ALTER COLUMN, or CREATE OR REPLACE TABLE",
    ),
    ("SET LOCATION", "the name of a table is its folder, which is not moved"),
)
_ALTERS = (
    "ALTER TABLE can ADD, DROP, RENAME and ALTER columns, ADD and DROP constraints, and SET and "
    "UNSET TBLPROPERTIES"
)


def hint_for(cursor: Cursor) -> str | None:
    """Return what to write instead of a statement; None if nothing is known."""
    cursor.index = 0
    if cursor.after().value in NAMESPACES and cursor.word in _OF_NAMESPACES:
        return _OF_NAMESPACES[cursor.word]
    if cursor.word in ("OPTIMIZE", "VACUUM", "REORG"):
        return _maintenance(cursor)
    if cursor.at("ALTER", "TABLE") and cursor.after(2).kind in (WORD, QUOTED):
        return _of_alter(cursor)
    if cursor.word in ("CREATE", "REPLACE"):
        return _of_create(cursor)
    return _by_words(cursor, _HINTS)


def _by_words(cursor: Cursor, hints: tuple[tuple[str, str], ...]) -> str | None:
    for first_words, hint in hints:
        if cursor.at(*first_words.split()):
            return hint
    return None


def _maintenance(cursor: Cursor) -> str:
    verb = {"OPTIMIZE": "compact", "VACUUM": "retain", "REORG": "compact"}[cursor.word]
    arguments = ""
    if any(token.value == "ZORDER" for token in cursor.tokens):
        verb, arguments = "zorder", ", columns => array(..)"
    cursor.index = 2 if cursor.after().value == "TABLE" else 1
    table = _table_name(cursor)
    hint = f"write {_call(table, verb, arguments)}"
    if verb == "retain":
        hint += ", which keeps versions for the table's window, or window => INTERVAL 7 DAYS"
    return hint


def _of_alter(cursor: Cursor) -> str:
    cursor.index = 2
    table = _table_name(cursor)
    if cursor.at("CLUSTER", "BY"):
        return f"write {_call(table, 'zorder', ', columns => array(..)')}"
    if cursor.at("DROP", "PARTITION") or cursor.at("DROP", "IF", "EXISTS", "PARTITION"):
        named = table.slice.text if table is not None else "t"
        dropped = _call(table, "drop_partition", ", map('column', value)")
        return f"write DELETE FROM {named} WHERE .., or {dropped}"
    return _by_words(cursor, _ALTER_HINTS) or _ALTERS


def _of_create(cursor: Cursor) -> str | None:
    values = {token.value for token in cursor.tokens}
    if "VIEW" in values and not cursor.at("CREATE", "TABLE"):
        return _VIEW
    if "CLONE" in values:
        return "write CREATE TABLE .. AS SELECT * FROM the other table, which copies its rows"
    if "LIKE" in values and "SELECT" not in values:
        return "write the statement that SHOW CREATE TABLE shows, with the other name"
    if "USING" in values:
        return (
            "a catalog of Opal has Opal tables alone: write USING opal, or a name outside of the "
            "catalog"
        )
    return _by_words(cursor, _HINTS)


def _table_name(cursor: Cursor) -> TableName | None:
    try:
        return cursor.table_name()
    except InvalidInputError:
        return None


def _call(table: TableName | None, verb: str, arguments: str) -> str:
    """Return the CALL of a verb on a table."""
    if table is None or len(table.parts) < 2:
        return f"CALL lake.system.{verb}('shop.orders'{arguments})"
    if table.path is not None:
        return f"CALL lake.system.{verb}('{table.slice.text}'{arguments})"
    catalog, _, rest = table.slice.text.partition(".")
    return f"CALL {catalog}.system.{verb}('{rest}'{arguments})"
