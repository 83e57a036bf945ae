"""Sql: run the statements of a script, each once by its token."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Help, Kind, Limit
from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Job

SHOWN_ROWS = 100  # of a query's result, by default


def _texts(name: str, value: Any) -> list[str]:
    """Return the texts of a script."""
    texts = [value] if isinstance(value, str) else value
    is_list = isinstance(texts, Sequence) and not isinstance(texts, bytes)
    if not is_list or not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidInputError(
            f"{name}={value!r} is not a script; give a text of statements, or a list of texts"
        )
    return list(texts)


def _parameters(name: str, value: Any) -> dict[str, Any]:
    """Return the values of parameters, which JSON can hold."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{name}={value!r} is not a mapping; write {name}={{'day': '...'}}")
    for parameter, given in value.items():
        if not isinstance(parameter, str) or not parameter.isidentifier():
            raise InvalidInputError(
                f"{name} has the parameter {parameter!r}; name it with letters, digits and _, and "
                "write :name in the statement"
            )
        if not isinstance(given, str | int | float | None):
            raise InvalidInputError(
                f"{name}[{parameter!r}] is {given!r}, a {type(given).__name__}; give a text, a "
                f"number, true or false, and convert it: CAST(:{parameter} AS DATE)"
            )
    return dict(value)


def _catalogs(name: str, value: Any) -> dict[str, str]:
    """Return the folders of catalogs by their names."""
    from opal_lake.sql.names import Catalog

    if not isinstance(value, Mapping):
        raise InvalidInputError(
            f"{name}={value!r} is not a mapping; write {name}={{'lake': 's3a://lake'}}"
        )
    made = [Catalog.checked(catalog, root) for catalog, root in value.items()]
    return {catalog.name: catalog.root for catalog in made}


@declaration
class Sql(Job):
    """Run SQL statements on tables, in their order.

    `sql` is a script, or a list of them. `args` are the values of its parameters, such as `:day`.
    `catalogs` names folders of tables: with `{"lake": "s3a://lake"}` the table `lake.shop.orders`
    is the one at s3a://lake/shop/orders. At most `limit` rows of a query are shown, or all with 0.

    All statements are read before the first one runs. With a token, statement n has the token
    `token/n`, so that a repeat goes on where the script stopped.
    """

    name: ClassVar[str] = "sql"
    needs_table: ClassVar[bool] = False

    sql: Annotated[Any, Kind(_texts, "TEXT"), Help("the statements")]
    args: Annotated[
        Any,
        Kind(_parameters, "NAME=VALUE"),
        Help("the value of a parameter :NAME", "NAME=VALUE", flag="arg"),
    ] = field(default_factory=dict)
    catalogs: Annotated[
        Any,
        Kind(_catalogs, "NAME=ROOT"),
        Help("name the folder of a lake", "NAME=ROOT", flag="catalog"),
    ] = field(default_factory=dict)
    limit: Annotated[Limit, Help("at most N rows of a query's result, or 0 for all", "N")] = (
        SHOWN_ROWS
    )

    @property
    def script(self) -> str:
        """Return the statements as one text."""
        from opal_lake.sql.script import joined_script

        return joined_script(tuple(self.sql))
