"""Catalogs of a session: names of tables such as `lake.shop.orders`, and the tables of names.

A catalog is a setting of the session, `spark.opal.catalog.NAME`, so that `--conf` can give it as
well.
"""

from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.sql.names import Catalog, is_catalog_name, is_reserved, name_parts, uri_of_parts
from opal_lake.sql.statements import Names, TableName
from opal_spark.engine.versions import check_session
from opal_spark.spark_sql.arguments import Arguments, constant
from opal_spark.table import OpalTable

SETTING = "spark.opal.catalog."
# By the names of Iceberg's metadata tables
_READ_INSTEAD = {
    "history": "DESCRIBE HISTORY {catalog}.{table}",
    "snapshots": "DESCRIBE HISTORY {catalog}.{table}",
    "changes": "SELECT * FROM {catalog}.{table} CHANGES FROM VERSION 1",
    "files": "CALL {catalog}.system.files('{table}')",
    "partitions": "CALL {catalog}.system.files('{table}')",
}


def catalog(spark: SparkSession, name: str, root: str) -> Catalog:
    """Give a folder of tables a name in a session, for `opal_spark.sql`.

    With `catalog(spark, "lake", "s3a://lake")` the table `lake.shop.orders` is the one at
    `s3a://lake/shop/orders`. The tables need not exist yet.
    """
    check_session(spark)
    made = Catalog.checked(name, root)
    if spark.conf.get(f"spark.sql.catalog.{name}", None) is not None:
        raise InvalidInputError(
            f"{name!r} is a catalog of Spark; choose another name for the catalog at {root!r}"
        )
    known = _catalog_named(spark, name)
    if known is not None and known.root != made.root:
        raise InvalidInputError(
            f"the catalog {name!r} of this session is at {known.root}; choose another name for "
            f"{made.root}, so that each table has one name, or remove the earlier catalog by "
            f"spark.conf.unset({SETTING + made.name!r})"
        )
    spark.conf.set(SETTING + made.name, made.root)
    return made


def catalog_of(spark: SparkSession, parts: Names) -> Catalog | None:
    """Return the catalog of a name; None if its first part is not an Opal catalog."""
    return _catalog_named(spark, parts[0]) if parts else None


def _catalog_named(spark: SparkSession, name: str) -> Catalog | None:
    if not is_catalog_name(name):
        return None
    root = spark.conf.get(SETTING + name.lower(), None)
    return Catalog(name=name.lower(), root=root.rstrip("/")) if root else None


def table_uri(spark: SparkSession, name: TableName, args: Arguments) -> str | None:
    """Return the path of an Opal table by its name; None for a name that is Spark's.

    The table may not exist. Raises InvalidInputError for a name that no table can have.
    """
    parts = name.parts or _computed_parts(spark, name, args)
    return uri_of_parts(parts, lambda first: _catalog_named(spark, first))


def refuse_unknown_catalog(spark: SparkSession, name: TableName, parts_of_spark: int) -> None:
    """Raise InvalidInputError for a longer name than Spark's own catalog has.

    Its first part has to be a catalog then, of Opal or of Spark.
    """
    parts = name.parts
    if len(parts) <= parts_of_spark or is_reserved(parts[0]):
        return
    first = parts[0]
    is_of_spark = spark.conf.get(f"spark.sql.catalog.{first}", None) is not None
    if is_of_spark or _catalog_named(spark, first) is not None:
        return
    if spark.catalog.currentCatalog() != "spark_catalog":
        # The catalog may have namespaces within namespaces
        return
    known = ", ".join(_known_catalogs(spark)) or "none"
    raise InvalidInputError(
        f"{shown_name(name)}: this session has no catalog {first!r}; its catalogs of Opal tables: "
        f"{known}. Write opal_spark.catalog(spark, {first!r}, root=..), or --catalog {first}=ROOT"
    )


def _known_catalogs(spark: SparkSession) -> list[str]:
    return sorted(key.removeprefix(SETTING) for key in spark.conf.getAll if key.startswith(SETTING))


def open_table(spark: SparkSession, name: TableName, uri: str) -> OpalTable:
    """Open the table of a name; raise NotFoundError if the folder is not a table."""
    try:
        return OpalTable.for_path(spark, uri)
    except NotFoundError as error:
        raise NotFoundError(f"{shown_name(name)}: {error}{_hint(name)}") from error


def shown_name(name: TableName) -> str:
    """Return how errors call a table: as the statement does."""
    return name.slice.text


def _hint(name: TableName) -> str:
    if name.path is not None:
        return ""
    read_instead = _READ_INSTEAD.get(name.parts[-1].lower()) if len(name.parts) > 2 else None
    if read_instead is not None:
        catalog, *within = name.slice.text.split(".")[:-1]
        table = ".".join(within)
        return f". Of a table, write {read_instead.format(catalog=catalog, table=table)}"
    return ". Names of tables are folders, so that upper and lower case differ"


def _computed_parts(spark: SparkSession, name: TableName, args: Arguments) -> Names:
    """Return the parts of a name that IDENTIFIER(...) computes."""
    if name.computed is None:
        return ()
    value = constant(spark, name.computed, args)
    if not isinstance(value, str):
        raise InvalidInputError(
            f"{name.slice.text} is {value!r}; give a text with the name of a table"
        )
    return name_parts(value)
