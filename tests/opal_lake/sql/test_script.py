"""Scripts: which table each statement changes, known without Spark."""

from typing import Any

import pytest

from opal_lake.errors import InvalidInputError
from opal_lake.sql.names import Catalog
from opal_lake.sql.script import changed_uri, joined_script, read_script

LAKE = Catalog.checked("lake", "s3a://lake/")
ARGS = {"table": "lake.shop.orders", "short": "shop.orders", "number": 7}


def catalog(name: str) -> Catalog | None:
    return LAKE if name.lower() == "lake" else None


def changed(text: str, args: Any = ARGS) -> str | None:
    [step] = read_script(text)
    return changed_uri(step.statement, args, catalog)


ORDERS = "s3a://lake/shop/orders"


@pytest.mark.parametrize(
    "text, uri",
    [
        ("UPDATE lake.shop.orders SET a = 1", ORDERS),
        ("DELETE FROM Lake.shop.orders o WHERE o.a = 1", ORDERS),
        ("MERGE INTO lake.a USING lake.b ON a.x = b.x WHEN MATCHED THEN DELETE", "s3a://lake/a"),
        ("INSERT INTO lake.shop.orders SELECT * FROM lake.other", ORDERS),
        ("INSERT OVERWRITE lake.shop.orders SELECT 1", ORDERS),
        ("INSERT INTO lake.shop.orders REPLACE WHERE a = 1 SELECT 1", ORDERS),
        ("ALTER TABLE lake.shop.orders DROP COLUMN a", ORDERS),
        ("CREATE TABLE lake.shop.orders (id INT PRIMARY KEY) USING opal", ORDERS),
        ("DROP TABLE IF EXISTS lake.shop.orders", ORDERS),
        ("RESTORE TABLE lake.shop.orders TO VERSION AS OF 3", ORDERS),
        ("UPDATE opal.`/data/t` SET a = 1", "/data/t"),
        ("DELETE FROM IDENTIFIER(:table)", ORDERS),
        ("DELETE FROM IDENTIFIER('lake.shop.orders')", ORDERS),
        ("CALL lake.system.compact(table => 'shop.orders')", ORDERS),
        ("CALL lake.system.compact('lake.shop.orders', mode => 'major')", ORDERS),
        ("CALL lake.system.compact(:short)", ORDERS),
        ("CALL lake.system.compact()", None),
        ("CALL other.system.rewrite('shop.orders')", None),
        ("SELECT * FROM lake.shop.orders", None),
        ("DESCRIBE lake.shop.orders", None),
        ("SHOW TABLES IN lake", None),
        ("INSERT INTO plain SELECT 1", None),
        ("UPDATE other.shop.orders SET a = 1", None),
    ],
)
def test_the_table_that_a_statement_changes_is_known_without_spark(
    text: str, uri: str | None
) -> None:
    assert changed(text) == uri


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM IDENTIFIER('lake.' || :short)",
        "DELETE FROM IDENTIFIER(:none)",
        "DELETE FROM IDENTIFIER(:number)",
        "CALL lake.system.compact(concat('shop', '.orders'))",
    ],
)
def test_a_name_that_only_spark_computes_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="has to be known before Spark starts"):
        changed(text)


def test_statements_have_numbers_lines_and_tokens() -> None:
    steps = read_script("-- first; one\nSELECT 1;\n\nUPDATE lake.t\nSET a = ';'\n;;")
    assert [(step.number, step.line, step.first_line) for step in steps] == [
        (1, 2, "SELECT 1"),
        (2, 4, "UPDATE lake.t"),
    ]
    assert [step.token_in("run") for step in steps] == ["run/1", "run/2"]
    assert read_script("SELECT 1")[0].token_in("run") == "run"
    assert len(read_script(f"SELECT {'1 + ' * 90}1")[0].first_line) == 83


def test_texts_are_one_script_and_each_is_read_on_its_own() -> None:
    joined = joined_script(("SELECT 1; -- end", "SELECT 2"))
    assert [step.first_line for step in read_script(joined)] == ["SELECT 1", "SELECT 2"]
    with pytest.raises(InvalidInputError, match=r"text 2 of 3: .*no end"):
        joined_script(("SELECT 1", "SELECT 'a", "b'"))
    with pytest.raises(InvalidInputError, match="no statement"):
        read_script(" ; -- nothing")
