"""The properties of a table: their types, limits and defaults."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches

from opal_lake.definition.schema import Atomic, Schema
from opal_lake.duration import check_span, plain_duration
from opal_lake.errors import InvalidInputError

Given = int | str | Sequence[str] | timedelta  # a property as callers write it
_CODEC = re.compile(r"zstd(:([1-9]|1[0-9]|2[0-2]))?\Z")
_WHOLE = re.compile(r"[0-9]{1,18}\Z")
MAX_NUMBER = (1 << 63) - 1  # of every count in a table's metadata
_MAX_SEGMENT_ROWS = 1 << 31  # offsets are 32-bit
_MAX_SEGMENT_BYTES = 1 << 40  # a tebibyte
_MAX_FAN_IN = 1 << 20
_MAX_FILE_MB = 1 << 20  # a tebibyte
_MIN_CLOCK_BOUND_US = 60_000_000  # S3 keeps times in whole seconds: less would refuse good clocks
_MAX_EVENT_TABLE = 512  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A whole number from `least` to `most`, or 0 if that switches something off."""

    default: int
    least: int = 1
    most: int = MAX_NUMBER
    can_be_0: bool = False

    def _allows(self, number: int) -> bool:
        return self.least <= number <= self.most or (self.can_be_0 and number == 0)

    def check(self, value: object) -> None:
        """Raise InvalidInputError unless a value is a number that the property allows."""
        # True and False are integers of Python
        if isinstance(value, int) and not isinstance(value, bool) and self._allows(value):
            return
        zero = "0, or " if self.can_be_0 else ""
        raise InvalidInputError(f"use {zero}a whole number from {self.least} to {self.most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """One of a few words, the first by default."""

    choices: tuple[str, ...]

    @property
    def default(self) -> str:
        return self.choices[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Free text. `check` raises InvalidInputError for a text that is not valid."""

    default: str
    check: Callable[[str, Schema | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """The values that a property may have, and its purpose.

    A property of `maintenance` changes neither how rows are written nor how they are read.
    """

    kind: Number | Words | Text
    summary: str
    maintenance: bool = False


def _check_span(text: str, _: Schema | None) -> None:
    check_span(text)


def _check_bound(text: str, _: Schema | None) -> None:
    if check_span(text) < _MIN_CLOCK_BOUND_US:
        raise InvalidInputError("use at least 1m: some stores keep times in whole seconds")


def _check_look_back(text: str, _: Schema | None) -> None:
    if text and not _WHOLE.match(text):
        check_span(text)


def _check_codec(text: str, _: Schema | None) -> None:
    if not _CODEC.match(text):
        raise InvalidInputError("use a codec from zstd:1 to zstd:22")


def _check_event_table(text: str, _: Schema | None) -> None:
    if len(text) > _MAX_EVENT_TABLE or not text.isprintable():
        raise InvalidInputError(f"use at most {_MAX_EVENT_TABLE} characters that can be printed")


def _check_zorder(text: str, schema: Schema | None) -> None:
    names = column_list(text)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidInputError(f"name each column only once, not {', '.join(repeated)} twice")
    if schema is None:
        return
    if names == ["none"] and "none" not in schema.names:
        raise InvalidInputError(
            "the table has no column of that name; for no Z-order use zorder=''"
        )
    for name in names:
        if not isinstance(schema.field(name).type, Atomic):
            raise InvalidInputError(
                f"values of the nested column {name!r} have no order; name columns of plain types"
            )


def column_list(text: str) -> list[str]:
    """Return the names of columns in a text such as `a,b`."""
    names = [name.strip() for name in text.split(",")]
    return [name for name in names if name]


def _maintenance(kind: Number | Words | Text, summary: str) -> Property:
    return Property(kind=kind, summary=summary, maintenance=True)


PROPERTIES: dict[str, Property] = {
    "group_rows": Property(
        kind=Number(default=1 << 30),
        summary="rows of one group; rewrites, broadcasts and logs stay within a group",
    ),
    "segment_rows": Property(
        kind=Number(default=1 << 22, most=_MAX_SEGMENT_ROWS),
        summary="maximum of rows in one ingested file",
    ),
    "segment_bytes": Property(
        kind=Number(default=128 << 20, most=_MAX_SEGMENT_BYTES),
        summary="bytes in memory at which an ingested file is closed",
    ),
    "checkpoint_commits": Property(
        kind=Number(default=4), summary="commits between two checkpoints"
    ),
    "key_store_fan_in": Property(
        kind=Number(default=8, least=2, most=_MAX_FAN_IN),
        summary="runs of similar size that are merged into one; larger values slow probes down",
    ),
    "fold_files": Property(
        kind=Number(default=16, least=2, most=_MAX_FAN_IN, can_be_0=True),
        summary="small files that an inline upsert merges on its way; 0 merges none",
    ),
    "token_keep": Property(
        kind=Number(default=10_000),
        summary="how many of the newest idempotency tokens the table remembers",
    ),
    "read_verify": Property(
        kind=Words(choices=("full", "footer", "none")),
        summary="what a read verifies of files before it opens them",
    ),
    "clock_bound": _maintenance(
        Text(default="10m", check=_check_bound), "how far a writer's clock may be from the store's"
    ),
    "target_mb": _maintenance(
        Number(default=256, most=_MAX_FILE_MB), "size of the files that a compaction writes"
    ),
    "local_mb": _maintenance(
        Number(default=512, most=_MAX_FILE_MB, can_be_0=True),
        "megabytes up to which a command reads in its own process; above, and with 0, Spark reads",
    ),
    "small_files": _maintenance(
        Number(default=16), "small files in one partition above which a compaction is due"
    ),
    "dead_share": _maintenance(
        Number(default=20, most=100),
        "percent of rows, invisible and older than look_back, at which a major compaction is due",
    ),
    "unclustered_share": _maintenance(
        Number(default=25, most=100),
        "percent of bytes not in Z-order at which a Z-order is due",
    ),
    "zorder": _maintenance(
        Text(default="", check=_check_zorder),
        "columns of the Z-order, for example a,b; empty: no Z-order",
    ),
    "drift": _maintenance(
        Text(default="0s", check=_check_span),
        "how long rows of the next business snapshot are held back",
    ),
    "window": _maintenance(
        Text(default="7d", check=_check_span), "how long versions stay readable, by commit time"
    ),
    "look_back": _maintenance(
        Text(default="", check=_check_look_back),
        "span of event time that stays readable: 30d, or a number in the delta's unit",
    ),
    "archive_after": _maintenance(
        Text(default="", check=_check_look_back),
        "age at which partitions are compressed harder",
    ),
    "event_table": _maintenance(
        Text(default="", check=_check_event_table),
        "name of the table in data-change events, for example shop.orders; empty: its URI",
    ),
    "archive_codec": _maintenance(
        Text(default="zstd:19", check=_check_codec), "codec of old partitions"
    ),
}


def default_of(name: str) -> int | str:
    return PROPERTIES[name].kind.default


def check_properties(properties: Mapping[str, int | str], schema: Schema | None = None) -> None:
    """Raise InvalidInputError for unknown properties and for invalid values.

    With a schema, a value that names a column which the schema lacks is invalid, too.
    """
    for name, value in properties.items():
        if name not in PROPERTIES:
            raise InvalidInputError(f"property {name!r} is unknown; {_known_text(name)}")
        kind = PROPERTIES[name].kind
        if value == "" and kind.default != "":
            raise InvalidInputError(
                f"property {name!r} has an empty value; give one, such as {kind.default}, or None "
                "for the default (`opal set --default`)"
            )
        try:
            _check(kind, value, schema)
        except InvalidInputError as error:
            raise InvalidInputError(f"property {name!r} is {value!r}; {error}") from error


def _known_text(name: str) -> str:
    """Return the property that an unknown name may mean, or else all properties."""
    text = str(name)  # Python callers can pass anything
    is_short = len(text) <= 100  # to compare a very long name takes seconds
    similar = get_close_matches(text, PROPERTIES, n=1) if is_short else []
    if similar:
        return f"did you mean {similar[0]!r}?"
    return f"the properties are {', '.join(PROPERTIES)}"


def known_properties(stored: Mapping[str, object]) -> dict[str, int | str]:
    """Check and return the properties in a table's metadata.

    Properties that only a newer version knows stay as they are, but ValueError is raised if one is
    neither a number nor a text.
    """
    known = {name: value for name, value in stored.items() if name in PROPERTIES}
    check_properties(known)  # type: ignore[arg-type]  # the call checks the types of the values
    plain = {name: value for name, value in stored.items() if isinstance(value, int | str)}
    if len(plain) < len(stored):
        raise ValueError(
            f"properties {sorted(stored.keys() - plain.keys())} are neither numbers nor texts"
        )
    return plain


def _check(kind: Number | Words | Text, value: object, schema: Schema | None) -> None:
    """Raise InvalidInputError with the allowed values if a value is not one of them."""
    match kind:
        case Words(choices=choices) if value not in choices:
            raise InvalidInputError(f"use one of {', '.join(choices)}")
        case Number():
            kind.check(value)
        case Text(check=check):
            if not isinstance(value, str):
                raise InvalidInputError("use a text")
            check(value, schema)


def plain_properties(properties: Mapping[str, Given]) -> dict[str, int | str]:
    """Return properties as they are stored.

    Lists of columns and durations become texts. A number becomes its digits if the property is a
    text.
    """
    return {name: _plain(name, value) for name, value in properties.items()}


def _plain(name: str, value: object) -> int | str:
    if isinstance(value, timedelta):
        return plain_duration(value, name=name)
    if isinstance(value, str | int):
        is_text = name in PROPERTIES and isinstance(PROPERTIES[name].kind, Text)
        if is_text and not isinstance(value, bool):
            return str(value)
        return value
    if isinstance(value, Sequence) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    raise InvalidInputError(
        f"property {name!r} is {value!r}, of type {type(value).__name__}; give a text, a whole "
        "number, a list of column names, or None for the default"
    )


def given_properties(texts: Mapping[str, str]) -> dict[str, int | str]:
    """Return the properties of a command line, with digits as numbers.

    A property that takes a text keeps its digits as text.
    """
    properties: dict[str, int | str] = {}
    for name, text in texts.items():
        takes_number = name not in PROPERTIES or isinstance(PROPERTIES[name].kind, Number)
        if takes_number and text.isdecimal():
            properties[name] = int(text)
        else:
            properties[name] = text
    return properties
