"""Names of tables: in catalogs of the session, and by path."""

from collections.abc import Iterator
from typing import Any

import pytest

import opal_spark
from opal_lake.errors import InvalidInputError
from opal_lake.sql.references import references
from opal_lake.sql.statements import Slice
from opal_spark.spark_sql.arguments import Arguments, Given
from opal_spark.spark_sql.catalog import SETTING, table_uri

pytestmark = pytest.mark.spark


@pytest.fixture
def session(spark: Any) -> Iterator[Any]:
    yield spark
    for name in ("lake", "pond"):
        spark.conf.unset(SETTING + name)


def uri(spark: Any, name: str, args: Given = None) -> str | None:
    text = f"SELECT * FROM {name}"
    [reference] = references(text)
    return table_uri(spark, reference.table, Arguments(args, Slice(text=text, offset=0)))


def test_a_name_is_a_folder_of_its_catalog(session: Any) -> None:
    opal_spark.catalog(session, "lake", root="s3a://lake/")
    assert uri(session, "lake.shop.orders") == "s3a://lake/shop/orders"
    assert uri(session, "LAKE.`my shop`.`a.b`") == "s3a://lake/my shop/a.b"
    assert uri(session, "lake.orders") == "s3a://lake/orders"
    assert uri(session, "opal.`/data/orders`") == "/data/orders"
    assert uri(session, "IDENTIFIER('lake.' || :of)", {"of": "shop.`x y`"}) == "s3a://lake/shop/x y"
    assert uri(session, "IDENTIFIER(?)", ["lake.a"]) == "s3a://lake/a"


@pytest.mark.parametrize(
    "name", ["orders", "lake", "pond.orders", "spark_catalog.a.b", "parquet.`/a`"]
)
def test_other_names_are_spark_s(session: Any, name: str) -> None:
    opal_spark.catalog(session, "lake", root="s3a://lake")
    assert uri(session, name) is None


@pytest.mark.parametrize(
    "part", ["..", ".", "a/b", "/", "../../etc", "a\\b", " ", " a", "a\n", "_opal", ".x", "x" * 256]
)
def test_a_part_that_is_no_folder_is_refused(session: Any, part: str) -> None:
    opal_spark.catalog(session, "lake", root="/data/lake")
    with pytest.raises(InvalidInputError, match="cannot be a table or namespace"):
        uri(session, f"lake.`{part}`.orders")


def test_a_catalog_has_one_root(session: Any) -> None:
    opal_spark.catalog(session, "lake", root="/data/lake")
    opal_spark.catalog(session, "Lake", root="/data/lake/")
    with pytest.raises(InvalidInputError, match="is at /data/lake; choose another name"):
        opal_spark.catalog(session, "lake", root="/data/pond")


@pytest.mark.parametrize(
    "name", ["", "a.b", "1a", "spark_catalog", "OPAL", "global_temp", "a b", 7]
)
def test_a_catalog_s_name_is_a_plain_word(session: Any, name: Any) -> None:
    with pytest.raises(InvalidInputError, match="catalog"):
        opal_spark.catalog(session, name, root="/data/lake")


@pytest.mark.parametrize("root", ["", "/", " "])
def test_a_root_is_a_folder(session: Any, root: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a folder"):
        opal_spark.catalog(session, "pond", root=root)
