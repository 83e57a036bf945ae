"""The definition of a table as the text of CREATE TABLE, and the roles that are properties there.

SHOW CREATE TABLE prints what CREATE TABLE reads: run again, it makes an equal table.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from opal_lake.data.shown_values import values_of
from opal_lake.definition.conditions.lexer import tokens_of
from opal_lake.definition.conditions.printer import literal_text
from opal_lake.definition.properties import PROPERTIES, default_of
from opal_lake.definition.schema import Field, default_array, type_name
from opal_lake.definition.table_spec import NO_DELETES, TableSpec
from opal_lake.errors import InvalidInputError
from opal_spark.spark_sql.literals import has_zone

# Parts of a definition that TBLPROPERTIES give when a table is created, and that never change
ROLES = ("keys", "delta", "tie_break", "deletes", "file_format")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def create_text(spec: TableSpec, name: str, *, in_utc: bool) -> str:
    """Return the CREATE TABLE of a table, which `name` calls there.

    `in_utc` says whether the session that runs it reads times without a zone in UTC. Raises
    InvalidInputError for a table without keys, which this version cannot create.
    """
    if not spec.has_keys:
        raise InvalidInputError(
            f"{name} has no keys, and CREATE TABLE cannot make such a table; see DESCRIBE {name}"
        )
    lines = list(_elements(spec, in_utc=in_utc))
    text = f"CREATE TABLE {name} (\n  " + ",\n  ".join(lines) + "\n)\nUSING opal"
    if spec.partition_by:
        text += f"\nPARTITIONED BY ({names_text(column.name for column in spec.partition_by)})"
    properties = {**_roles(spec), **spec.properties}
    shown = [f"{quoted(key)} = {quoted(str(value))}" for key, value in properties.items()]
    if shown:
        text += "\nTBLPROPERTIES (\n  " + ",\n  ".join(shown) + "\n)"
    return text


def _elements(spec: TableSpec, *, in_utc: bool) -> Iterator[str]:
    """Yield the columns and constraints between the parentheses."""
    for column in spec.schema.own_fields:
        text = f"{name_text(column.name)} {type_name(column.type)}"
        if column in spec.not_null:
            text += " NOT NULL"
        default = shown_default(column)
        if default is not None:
            text += f" DEFAULT {default}"
        if column.generated is not None:
            expression = _condition_text(str(column.generated), in_utc=in_utc)
            text += f" GENERATED ALWAYS AS ({expression})"
        yield text
    yield f"PRIMARY KEY ({names_text(column.name for column in spec.keys)})"
    for name, condition in spec.constraints.items():
        shown = _condition_text(condition, in_utc=in_utc)
        yield f"CONSTRAINT {name_text(name)} CHECK ({shown})"


def shown_default(field: Field) -> str | None:
    """Return the default of new rows as a literal for Spark, or None."""
    if field.write is None:
        return None
    [value] = values_of(default_array(field, field.write, 1))
    match value:
        case float():
            return f"{value!r}D"
        case str():
            return quoted(value)
        case datetime() if value.tzinfo is not None:
            text = value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")
            return f"TIMESTAMP '{text}+00:00'"
    return literal_text(value)


def _condition_text(condition: str, *, in_utc: bool) -> str:
    """Return a stored condition as Spark reads it, with escapes and zones."""
    parts: list[str] = []
    position = 0
    word = ""
    for token in tokens_of(condition, len(condition)):
        if token.kind == "text":
            value = token.value
            if word == "TIMESTAMP" and not in_utc and not has_zone(value):
                value += "+00:00" if ":" in value else " 00:00:00+00:00"
            is_read_alike = value == token.value and "\\" not in value and "${" not in value
            if not is_read_alike:
                parts += [condition[position : token.at], quoted(value)]
                position = token.at + len(literal_text(token.value))
        word = token.keyword
    return "".join([*parts, condition[position:]])


def _roles(spec: TableSpec) -> dict[str, str]:
    """Return the roles that CREATE TABLE takes as properties, without defaults."""
    roles: dict[str, str] = {}
    if not spec.orders_by_commit:
        roles["delta"] = spec.delta.name
    if spec.tie_break:
        roles["tie_break"] = names_list([column.name for column in spec.tie_break])
    if spec.deletes not in (None, NO_DELETES):
        roles["deletes"] = str(spec.deletes)
    if spec.file_format != "parquet":
        roles["file_format"] = spec.file_format
    return roles


def shown_properties(spec: TableSpec) -> dict[str, str]:
    """Return the roles of a table, and the properties that are set."""
    roles = {}
    if spec.has_keys:
        roles["keys"] = names_list([column.name for column in spec.keys])
        roles["delta"] = spec.delta.name
        roles |= _roles(spec)
    roles["file_format"] = spec.file_format
    values = {name: str(value) for name, value in spec.properties.items()}
    return {**roles, **values}


def shown_property(spec: TableSpec, key: str) -> str:
    """Return one property, set or default; raise InvalidInputError for an unknown one."""
    shown = shown_properties(spec)
    if key in shown:
        return shown[key]
    if key in ROLES:
        return ""
    if key not in PROPERTIES:
        raise InvalidInputError(
            f"property {key!r} is unknown; known are {', '.join((*ROLES, *PROPERTIES))}"
        )
    return str(default_of(key))


def split_roles(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the roles among the properties of CREATE TABLE, and the other properties."""
    roles = {key: value for key, value in properties.items() if key in ROLES}
    others = {key: value for key, value in properties.items() if key not in ROLES}
    return roles, others


def name_text(name: str) -> str:
    """Return a name as SQL reads it, with backticks where it needs them."""
    return name if _PLAIN.match(name) else "`" + name.replace("`", "``") + "`"


def names_text(names: Iterator[str]) -> str:
    return ", ".join(map(name_text, names))


def names_list(names: Sequence[str]) -> str:
    """Return names of columns in one text, which `names_of` reads."""
    text = io.StringIO()
    csv.writer(text, quotechar="`", lineterminator="").writerow(names)
    return text.getvalue()


def names_of(key: str, text: str) -> list[str]:
    """Return the names in a text such as 'a,b'; backticks surround those with commas."""
    [names] = csv.reader([text], quotechar="`", skipinitialspace=True, strict=True)
    if not names or not all(name.strip() for name in names):
        raise InvalidInputError(
            f"property {key!r} is {text!r}; write the names of columns, such as 'id' or 'a,b'"
        )
    return [name if f"`{name}`" in text else name.strip() for name in names]


def quoted(text: str) -> str:
    """Return a text as a string of SQL."""
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    # Spark replaces ${name} by a setting before it reads the string
    return "'" + escaped.replace("${", "$\\{") + "'"
