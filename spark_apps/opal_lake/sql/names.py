"""Names of tables: `lake.shop.orders` in a catalog, or opal.`path`.

A catalog is a name for a folder of tables.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opal_lake.errors import InvalidInputError
from opal_lake.sql.cursor import Cursor
from opal_lake.sql.lexer import END, tokens
from opal_lake.sql.statements import Names

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

    @classmethod
    def checked(cls, name: object, root: object) -> "Catalog":
        """Return a catalog; raise InvalidInputError for a name or root that cannot be one."""
        if not is_catalog_name(str(name)):
            raise InvalidInputError(
                f"{name!r} is not a name for a catalog; use letters, digits and _, and begin with "
                "a letter, such as lake"
            )
        if is_reserved(str(name)):
            raise InvalidInputError(
                f"{name!r} is a catalog of Spark; choose another name for the catalog at {root!r}"
            )
        if not str(root).strip("/ "):
            raise InvalidInputError(
                f"root={root!r} is not a folder; give the path of the lake, such as 's3a://lake'"
            )
        return cls(name=str(name).lower(), root=str(root).rstrip("/"))

    def uri(self, names: Sequence[str]) -> str:
        """Return the path of a table or namespace, by its names within the catalog."""
        for name in names:
            _check_part(name, self)
        return "/".join([self.root, *names])


FindCatalog = Callable[[str], Catalog | None]  # by the first part of a name


def is_catalog_name(name: str) -> bool:
    """Return whether a catalog may have this name."""
    return _CATALOG_NAME.fullmatch(name) is not None


def is_hidden(name: str) -> bool:
    """Return whether a folder of this name is hidden, and so holds no tables."""
    return name.startswith((".", "_"))


def is_reserved(name: str) -> bool:
    """Return whether Spark or Opal has a meaning of its own for a first part."""
    return name.lower() in _RESERVED


def uri_of_parts(parts: Names, find_catalog: FindCatalog) -> str | None:
    """Return the path of an Opal table by its name; None for a name that is Spark's.

    The table may not exist. Raises InvalidInputError for a name that no table can have.
    """
    if len(parts) == 2 and parts[0].lower() == OPAL:
        return parts[1]
    if len(parts) < 2:
        # A view, or a table in Spark's current database
        return None
    within = find_catalog(parts[0])
    return None if within is None else within.uri(parts[1:])


def name_parts(text: str) -> Names:
    """Return the parts of a name that is a text of its own, such as 'shop.orders'."""
    cursor = Cursor(text, tokens(text))
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
    elif is_hidden(name):
        reason = f"begins with {name[0]!r}, as hidden folders do"
    elif len(name.encode("utf-8", "surrogatepass")) > _MAX_BYTES:
        reason = f"is longer than {_MAX_BYTES} bytes"
    if reason is not None:
        raise InvalidInputError(
            f"{name!r} cannot be a table or namespace of the catalog {of.name!r}: it {reason}; "
            "choose another name, or name the table by its path: opal.`path`"
        )
