"""The properties of a table: their types, limits and defaults."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from opal_lake.definition.schema import Atomic, Schema
from opal_lake.duration import parse_duration, plain_duration
from opal_lake.errors import InvalidInputError

_CODEC = re.compile(r"zstd(:([1-9]|1[0-9]|2[0-2]))?\Z")
Given = int | str | Sequence[str] | timedelta  # a property as callers write it
_WHOLE = re.compile(r"[0-9]{1,18}\Z")
MAX_NUMBER = (1 << 63) - 1  # of every count in a table's metadata
_MAX_SEGMENT_ROWS = 1 << 31  # offsets are 32-bit
_MAX_SEGMENT_BYTES = 1 << 40
_MAX_FAN_IN = 1 << 20
_MAX_FILE_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A whole number from `least` to `most`, or 0 if that switches off what the number is for."""

    default: int
    least: int = 1
    most: int = MAX_NUMBER
    can_be_0: bool = False

    def _allows(self, number: int) -> bool:
        return self.least <= number <= self.most or (self.can_be_0 and number == 0)

    def check(self, value: object) -> None:
        """Raise InvalidInputError for what is not such a number."""
        if isinstance(value, int) and not isinstance(value, bool) and self._allows(value):
            return
        off = "0, or " if self.can_be_0 else ""
        raise InvalidInputError(f"use {off}a whole number from {self.least} to {self.most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """One of a few words, the first by default."""

    choices: tuple[str, ...]

    @property
    def default(self) -> str:
        return self.choices[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Free text that a check vouches for; it raises when the text is none of its kind."""

    default: str
    check: Callable[[str, Schema | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """What a property may be, and what it does. Those of `maintenance` say nothing of how rows are written or read."""

    kind: Number | Words | Text
    summary: str
    maintenance: bool = False


def _check_span(text: str, _: Schema | None) -> None:
    parse_duration(text, name="span")


def _check_bound(text: str, _: Schema | None) -> None:
    if parse_duration(text, name="span") < 60_000_000:
        raise InvalidInputError("use at least 1m: some stores keep times in whole seconds")


def _check_look_back(text: str, _: Schema | None) -> None:
    if text and not _WHOLE.match(text):
        parse_duration(text, name="span")


def _check_codec(text: str, _: Schema | None) -> None:
    if not _CODEC.match(text):
        raise InvalidInputError(f"{text!r} is no codec; write zstd:1 to zstd:22")


def _check_event_table(text: str, _: Schema | None) -> None:
    if len(text) > 512 or not text.isprintable():
        raise InvalidInputError("use at most 512 characters that can be printed")


def _check_zorder(text: str, schema: Schema | None) -> None:
    names = column_list(text)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInputError(f"{', '.join(twice)} is named twice; name each column once")
    if schema is None:
        return
    if names == ["none"] and "none" not in schema.names:
        raise InvalidInputError("for no Z-order give an empty value: zorder=''")
    for name in names:
        if not isinstance(schema.field(name).type, Atomic):
            raise InvalidInputError(
                f"column {name!r} is nested, and its values have no order; name columns of plain types"
            )


def column_list(text: str) -> list[str]:
    """`a,b` as names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _maintenance(kind: Number | Words | Text, summary: str) -> Property:
    return Property(kind=kind, summary=summary, maintenance=True)


PROPERTIES: dict[str, Property] = {
    "group_rows": Property(
        kind=Number(default=1 << 30),
        summary="rows of one group: a rewrite, a broadcast and a log stay within it",
    ),
    "segment_rows": Property(
        kind=Number(default=1 << 22, most=_MAX_SEGMENT_ROWS),
        summary="most rows of one ingested file",
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
        summary="runs of similar size that are merged into one; a larger number makes probes slower",
    ),
    "fold_files": Property(
        kind=Number(default=16, least=2, most=_MAX_FAN_IN, can_be_0=True),
        summary="small files that inline upserts put together in passing; 0: none",
    ),
    "token_keep": Property(
        kind=Number(default=10_000),
        summary="how many idempotency tokens are remembered, the newest ones",
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
        "megabytes that a command reads in its own process; more is read by Spark, with 0 all",
    ),
    "small_files": _maintenance(
        Number(default=16), "most small files of a partition before a compaction is due"
    ),
    "dead_share": _maintenance(
        Number(default=20, most=100),
        "percent of the rows, invisible and beyond look_back: a major compaction is due",
    ),
    "unclustered_share": _maintenance(
        Number(default=25, most=100),
        "percent of the bytes that are not in Z-order: a Z-order is due",
    ),
    "zorder": _maintenance(
        Text(default="", check=_check_zorder), "columns of the Z-order, as a,b; empty: no Z-order"
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
        "event times that stay readable: 30d, or a number in the delta's unit",
    ),
    "archive_after": _maintenance(
        Text(default="", check=_check_look_back),
        "age at which partitions are compressed harder",
    ),
    "event_table": _maintenance(
        Text(default="", check=_check_event_table),
        "name in data-change events, as shop.orders; empty: the place",
    ),
    "archive_codec": _maintenance(
        Text(default="zstd:19", check=_check_codec), "how old partitions are compressed"
    ),
}


def default_of(name: str) -> int | str:
    return PROPERTIES[name].kind.default


def check_properties(properties: Mapping[str, int | str], schema: Schema | None = None) -> None:
    """Refuse properties that nothing reads, and values that mean nothing. With a schema also columns that it does not have."""
    for name, value in properties.items():
        if name not in PROPERTIES:
            raise InvalidInputError(
                f"property {name!r} is unknown; known are {', '.join(PROPERTIES)}"
            )
        kind = PROPERTIES[name].kind
        if value == "" and kind.default != "":
            raise InvalidInputError(
                f"property {name!r} has an empty value; write one, as {kind.default}, or None for "
                "the default (`opal set --default`)"
            )
        try:
            _check(kind, value, schema)
        except InvalidInputError as error:
            raise InvalidInputError(f"property {name!r} is {value!r}; {error}") from error


def known_properties(held: Mapping[str, object]) -> dict[str, int | str]:
    """As a table's metadata holds them: a newer writer may have set some that nothing here reads, and each may be at most a short text."""
    check_properties({name: value for name, value in held.items() if name in PROPERTIES})  # type: ignore[misc]  # which is what it finds out
    plain = {name: value for name, value in held.items() if isinstance(value, int | str)}
    if len(plain) < len(held):
        raise ValueError(
            f"properties {sorted(held.keys() - plain.keys())} are neither numbers nor texts"
        )
    return plain


def _check(kind: Number | Words | Text, value: object, schema: Schema | None) -> None:
    match kind:
        case Words(choices=choices) if value not in choices:
            raise InvalidInputError(f"use one of {', '.join(choices)}")
        case Number():
            kind.check(value)
        case Text(check=check):
            if not isinstance(value, str):
                raise InvalidInputError("write it as text")
            check(value, schema)


def plain_properties(properties: Mapping[str, Given]) -> dict[str, int | str]:
    """As they are stored: a list of columns and a duration as text, and a number as its digits where text is expected."""
    return {name: _plain(name, value) for name, value in properties.items()}


def _plain(name: str, value: object) -> int | str:
    if isinstance(value, timedelta):
        return plain_duration(value, name=name)
    is_text = name in PROPERTIES and isinstance(PROPERTIES[name].kind, Text)
    if isinstance(value, str | int):
        return str(value) if is_text and not isinstance(value, bool) else value
    if isinstance(value, Sequence) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    raise InvalidInputError(
        f"property {name!r} is {value!r}, of type {type(value).__name__}; write a text or a whole "
        "number, a list of column names, or None for the default"
    )


def given_properties(texts: Mapping[str, str]) -> dict[str, int | str]:
    """From a command line: digits are a number where one is expected."""
    numbers = {
        name
        for name in texts
        if name not in PROPERTIES or isinstance(PROPERTIES[name].kind, Number)
    }
    return {
        name: int(text) if name in numbers and text.isdecimal() else text
        for name, text in texts.items()
    }
