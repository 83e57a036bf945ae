"""Names of tables: `lake.shop.orders` in a catalog, or opal.`path`.

A catalog is a name for a folder. It is a setting of the session, `spark.opal.catalog.NAME`, so that
`--conf` can give it as well.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.sql.cursor import Cursor
from opal_lake.sql.lexer import END, tokens
from opal_lake.sql.statements import Names, TableName
from opal_spark.engine.versions import check_session
from opal_spark.spark_sql.arguments import Arguments, constant
from opal_spark.table import OpalTable, SparkPlace

SETTING = "spark.opal.catalog."
OPAL = "opal"
# Spark has a meaning of its own for these
_RESERVED = frozenset({OPAL, "spark_catalog", "session", "system", "global_temp", "local_temp"})
_CATALOG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MAX_BYTES = 255  # of a folder's name, in most file systems
_FORBIDDEN = re.compile(r"[/\\\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """A name of a lake's folder: `lake.shop.orders` is ROOT/shop/orders."""

    name: str
    root: str

    def uri(self, names: Sequence[str]) -> str:
        """Return the path of a table or namespace, by its names within the catalog."""
        for name in names:
            _check_part(name, self)
        return "/".join([self.root, *names])


def catalog(spark: SparkSession, name: str, root: str) -> Catalog:
    """Give a folder of tables a name in a session, for `opal_spark.sql`.

    With `catalog(spark, "lake", "s3a://lake")` the table `lake.shop.orders` is the one at
    `s3a://lake/shop/orders`. The tables need not exist yet.
    """
    check_session(spark)
    if not _CATALOG_NAME.fullmatch(str(name)):
        raise InvalidInputError(
            f"{name!r} is not a name for a catalog; use letters, digits and _, and begin with a "
            "letter, such as lake"
        )
    if name.lower() in _RESERVED or spark.conf.get(f"spark.sql.catalog.{name}", None) is not None:
        raise InvalidInputError(
            f"{name!r} is a catalog of Spark; choose another name for the catalog at {root!r}"
        )
    if not str(root).strip("/ "):
        raise InvalidInputError(
            f"root={root!r} is not a folder; give the path of the lake, such as 's3a://lake'"
        )
    made = Catalog(name=name.lower(), root=str(root).rstrip("/"))
    known = _catalog_named(spark, name)
    if known is not None and known.root != made.root:
        raise InvalidInputError(
            f"the catalog {name!r} of this session is at {known.root}; choose another name for "
            f"{made.root}, so that each table has one name"
        )
    spark.conf.set(SETTING + made.name, made.root)
    return made


def catalog_of(spark: SparkSession, parts: Names) -> Catalog | None:
    """Return the catalog of a name; None if its first part is not an Opal catalog."""
    return _catalog_named(spark, parts[0]) if parts else None


def _catalog_named(spark: SparkSession, name: str) -> Catalog | None:
    if not _CATALOG_NAME.fullmatch(name):
        return None
    root = spark.conf.get(SETTING + name.lower(), None)
    return Catalog(name=name.lower(), root=root.rstrip("/")) if root else None


def table_uri(spark: SparkSession, name: TableName, args: Arguments) -> str | None:
    """Return the path of an Opal table by its name; None for a name that is Spark's.

    The table may not exist. Raises InvalidInputError for a name that no table can have.
    """
    parts = name.parts or _computed_parts(spark, name, args)
    if len(parts) == 2 and parts[0].lower() == OPAL:
        return parts[1]
    if len(parts) < 2:
        # A view, or a table in Spark's current database
        return None
    within = catalog_of(spark, parts)
    return None if within is None else within.uri(parts[1:])


def open_table(spark: SparkSession, name: TableName, uri: str) -> OpalTable:
    """Open the table of a name; raise NotFoundError if the folder is not a table."""
    try:
        return OpalTable.for_path(spark, uri)
    except NotFoundError as error:
        raise NotFoundError(f"{shown_name(name)}: {error}{_hint(name)}") from error


def place_of(spark: SparkSession, uri: str) -> SparkPlace:
    """Return the place of a table that may not exist."""
    return SparkPlace(spark=spark, uri=uri)


def shown_name(name: TableName) -> str:
    """Return how errors call a table: as the statement does."""
    return name.slice.text


def _hint(name: TableName) -> str:
    if name.path is not None:
        return ""
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
    cursor = Cursor(value, tokens(value))
    parts = cursor.names("the name of a table")
    if cursor.token.kind != END:
        raise cursor.error("the end of the name")
    return parts


def _check_part(name: str, of: Catalog) -> None:
    """Raise InvalidInputError for a part of a name that is not a folder's name."""
    reason = None
    if not name.strip():
        reason = "is empty"
    elif name != name.strip():
        reason = "begins or ends with a space"
    elif _FORBIDDEN.search(name):
        reason = "has a slash, a backslash or a control character"
    elif name.startswith((".", "_")):
        reason = f"begins with {name[0]!r}, as hidden folders do"
    elif len(name.encode("utf-8", "surrogatepass")) > _MAX_BYTES:
        reason = f"is longer than {_MAX_BYTES} bytes"
    if reason is not None:
        raise InvalidInputError(
            f"{name!r} cannot be a table or namespace of the catalog {of.name!r}: it {reason}; "
            "choose another name, or name the table by its path: opal.`path`"
        )
