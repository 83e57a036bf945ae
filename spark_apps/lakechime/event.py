"""The data-change event: a change of a table, as its producer reports it."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from lakechime.errors import InvalidEventError

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]

DEFAULT_CLUSTER = "default"
MAX_NAME_CHARS = 512
# PostgreSQL limits an index row to 2,704 bytes, and a row has two names and a digest:
# (cluster, table, item), (consumer, key).
MAX_NAME_BYTES = 1024
MAX_SNAPSHOT_CHARS = 256  # at most 1,024 bytes, in an index with two numbers
MAX_PARTITION_LEVELS = 32
MAX_PARTITION_BYTES = 4096
MAX_TAGS = 64
MAX_TAG_NAME_CHARS = 128
MAX_TAG_VALUE_CHARS = 1024
MAX_TAGS_BYTES = 16_384
_MAX_LONG = (1 << 63) - 1
_SHOWN_CHARS = 80
_SHOWN_NAMES = 5
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_NOT_CLEAN = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")


class TableFormat(StrEnum):
    """The format whose metadata explains the snapshot id."""

    HIVE = "HIVE"
    ICEBERG = "ICEBERG"
    DELTA = "DELTA"
    HUDI = "HUDI"
    PAIMON = "PAIMON"
    OPAL = "OPAL"


class OperationType(StrEnum):
    """The kind of a change. UPDATE is unspecific: it appended, deleted, or both."""

    APPEND = "APPEND"
    DELETE = "DELETE"
    UPDATE = "UPDATE"


_NO_TAGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChangeEvent:
    """One change of one table, or of one partition of it.

    Registration assigns `event_ts` and `seq`; a producer leaves them None. Times are milliseconds
    since 1970. `partition` has one JSON value for each level. It is None if the table is not
    partitioned, or if the event names no partition.
    """

    table: str
    partition: tuple[JsonValue, ...] | None = None
    snapshot_id: str | None = None
    snapshot_ts: int | None = None
    prev_snapshot_id: str | None = None
    table_format: TableFormat
    operation_type: OperationType = OperationType.UPDATE
    tags: Mapping[str, str] = field(default_factory=lambda: _NO_TAGS)
    cluster: str = DEFAULT_CLUSTER
    event_ts: int | None = None
    seq: int | None = None

    def __post_init__(self) -> None:
        check_name("table", self.table)
        check_name("cluster", self.cluster)
        table_format = _member(TableFormat, "table_format", self.table_format)
        object.__setattr__(self, "table_format", table_format)
        operation_type = _member(OperationType, "operation_type", self.operation_type)
        object.__setattr__(self, "operation_type", operation_type)
        if self.partition is not None:
            object.__setattr__(self, "partition", checked_partition(self.partition))
        self._check_snapshots()
        for name in ("snapshot_ts", "event_ts", "seq"):
            number = getattr(self, name)
            if number is not None:
                check_number(name, number)
        object.__setattr__(self, "tags", checked_tags(self.tags))

    def _check_snapshots(self) -> None:
        for name in ("snapshot_id", "prev_snapshot_id"):
            _check_snapshot(name, getattr(self, name))
        if self.snapshot_id is None and self.table_format is not TableFormat.HIVE:
            raise InvalidEventError(
                f"an event of {self.table} has no snapshot_id; "
                f"name the snapshot, which only events of {TableFormat.HIVE} may leave out"
            )
        if self.snapshot_id is not None and self.snapshot_id == self.prev_snapshot_id:
            raise InvalidEventError(
                f"snapshot {_shown(self.snapshot_id)} of {self.table} names itself as "
                "prev_snapshot_id; name the snapshot before it"
            )

    def __hash__(self) -> int:
        return hash((self.cluster, self.table, self.snapshot_id, self.seq))

    def __reduce__(
        self,
    ) -> tuple[Callable[[Mapping[str, Any]], "DataChangeEvent"], tuple[dict[str, Any]]]:
        return event_from_json, (self.to_json(),)

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name, as JSON values.

        `event_ts` and `seq` are left out until registration has assigned them.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in FIELDS}
        values["partition"] = None if self.partition is None else _plain(self.partition)
        values["tags"] = dict(self.tags)
        values["table_format"] = str(self.table_format)
        values["operation_type"] = str(self.operation_type)
        for name in GIVEN_AT_REGISTRATION:
            if values[name] is None:
                del values[name]
        return values

    @staticmethod
    def from_json(value: Any) -> "DataChangeEvent":
        return event_from_json(value)


FIELDS = tuple(member.name for member in fields(DataChangeEvent))
GIVEN_AT_REGISTRATION = frozenset({"event_ts", "seq"})


def event_from_json(value: Any) -> DataChangeEvent:
    """Return the event that `to_json` described, or that a JSON text describes.

    Unknown fields are an error: a mistyped one would be lost silently.
    """
    if isinstance(value, str | bytes):
        value = _parsed(value)
    if not isinstance(value, Mapping):
        raise InvalidEventError(
            f"an event is a JSON object, and {_shown(value)} is not; write an object"
        )
    unknown = sorted(str(name) for name in set(value) - set(FIELDS))
    if unknown:
        raise InvalidEventError(
            f"an event has no field {_listed(unknown)}; its fields are {', '.join(FIELDS)}"
        )
    missing = [name for name in ("table", "table_format") if name not in value]
    if missing:
        raise InvalidEventError(
            f"an event needs {' and '.join(missing)}; its fields are {', '.join(FIELDS)}"
        )
    values = dict(value)
    # Null stands for the default in these fields
    for name, default in (
        ("operation_type", OperationType.UPDATE),
        ("cluster", DEFAULT_CLUSTER),
        ("tags", {}),
    ):
        if values.get(name) is None:
            values[name] = default
    return DataChangeEvent(**values)


def stored_event(values: Mapping[str, Any]) -> DataChangeEvent:
    """Return the event of a stored row, which has all fields, without checking them.

    Registration has checked them, and reading many events should not repeat that.
    """
    event = object.__new__(DataChangeEvent)
    for name in FIELDS:
        object.__setattr__(event, name, values[name])
    return event


def check_name(what: str, value: Any) -> str:
    """Return a name if it is valid, or raise InvalidEventError.

    `what` is the word for it in messages, such as table, cluster, consumer or key.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME_CHARS or not _is_clean(value):
        raise InvalidEventError(
            f"{what}={_shown(value)} is not a valid name; "
            f"write 1 to {MAX_NAME_CHARS} characters without control characters"
        )
    size = len(value.encode())
    if size > MAX_NAME_BYTES:
        raise InvalidEventError(
            f"{what}={_shown(value)} takes {size:,} bytes in UTF-8, and a name may take "
            f"{MAX_NAME_BYTES:,}, the most that every database can index; shorten the name"
        )
    return value


def json_text(what: str, value: Any, max_bytes: int) -> str:
    """Return a value as compact JSON text in ASCII.

    Raises InvalidEventError if JSON cannot express the value, if it has an unpaired surrogate, or
    if the text takes more than `max_bytes`. `what` names the value in messages.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except UnicodeEncodeError as error:
        raise InvalidEventError(
            f"{what} has an unpaired surrogate, which UTF-8 cannot express; leave it out"
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEventError(
            f"{what} is not JSON ({error}); use texts, numbers, booleans, lists and mappings"
        ) from error
    if len(text) > max_bytes:
        raise InvalidEventError(
            f"{what} takes {len(text):,} bytes, and may take {max_bytes:,}; "
            "store the long value with the data, and a short one here"
        )
    return text


def checked_partition(value: Any) -> tuple[JsonValue, ...]:
    """Return a partition as a tuple of values, or raise InvalidEventError."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidEventError(
            f"partition={_shown(value)} is not a list; "
            'write one value for each level, such as ["2026-11-24", 7]'
        )
    if not 1 <= len(value) <= MAX_PARTITION_LEVELS:
        raise InvalidEventError(
            f"the partition has {len(value)} levels, and may have 1 to {MAX_PARTITION_LEVELS}; "
            "write None for a table without partitions"
        )
    text = partition_text(value)
    if len(text.encode()) > MAX_PARTITION_BYTES:
        raise InvalidEventError(
            f"partition {_shown(text)} takes more than {MAX_PARTITION_BYTES:,} bytes as JSON; "
            "use shorter values"
        )
    return tuple(value)


def partition_text(value: Sequence[JsonValue]) -> str:
    """Return the canonical text of a partition.

    It is JSON with sorted names and without spaces. 1, 1.0 and "1" are three partitions.
    """
    try:
        text = json.dumps(
            _plain(value),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEventError(
            f"partition={_shown(value)} is not JSON ({error}); "
            "use texts, numbers, booleans, lists and mappings"
        ) from error
    if not _is_text(text):
        raise InvalidEventError(
            f"partition={_shown(value)} has an unpaired surrogate, "
            "which databases cannot store; leave it out"
        )
    return text


def checked_tags(value: Any) -> Mapping[str, str]:
    """Return a read-only copy of the tags, or raise InvalidEventError."""
    if not isinstance(value, Mapping):
        raise InvalidEventError(
            f"tags={_shown(value)} is not a mapping of texts to texts; "
            'write for example {"country": "NL"}'
        )
    if len(value) > MAX_TAGS:
        raise InvalidEventError(
            f"the event has {len(value):,} tags, and may have {MAX_TAGS}; "
            "store the other facts with the data"
        )
    size = 0
    for name, text in value.items():
        _check_tag(name, text)
        size += len(name.encode()) + len(text.encode())
    if size > MAX_TAGS_BYTES:
        raise InvalidEventError(
            f"the tags take {size:,} bytes, and may take {MAX_TAGS_BYTES:,}; "
            "store long values with the data, and their location in a tag"
        )
    return MappingProxyType(dict(value))


def _check_tag(name: Any, text: Any) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_TAG_NAME_CHARS or not _is_clean(name):
        raise InvalidEventError(
            f"{_shown(name)} is not a valid name of a tag; "
            f"write 1 to {MAX_TAG_NAME_CHARS} characters without control characters"
        )
    if not isinstance(text, str):
        raise InvalidEventError(
            f"tag {name} has the value {_shown(text)}, which is not a text; put it in quotes"
        )
    if len(text) > MAX_TAG_VALUE_CHARS:
        raise InvalidEventError(
            f"tag {_shown(name)} has {len(text):,} characters, and may have "
            f"{MAX_TAG_VALUE_CHARS:,}; store the value with the data, and its location in the tag"
        )
    if not _is_text(text):
        raise InvalidEventError(
            f"tag {name} has a character that databases cannot store "
            "(NUL, or an unpaired surrogate); leave it out"
        )


def _check_snapshot(name: str, value: Any) -> None:
    if value is None:
        return
    is_short = isinstance(value, str) and 1 <= len(value) <= MAX_SNAPSHOT_CHARS
    if not is_short or not _is_clean(value):
        raise InvalidEventError(
            f"{name}={_shown(value)} is not a valid id of a snapshot; "
            f"write 1 to {MAX_SNAPSHOT_CHARS} characters without control characters"
        )


def check_number(name: str, value: Any) -> int:
    """Return a whole number if it is valid, or raise InvalidEventError.

    The number is a seq, a revision, or a time in milliseconds since 1970.
    """
    # `type`, since a bool is an int too
    if type(value) is not int or not 0 <= value <= _MAX_LONG:
        unit = ", in milliseconds since 1970" if name.endswith(("_ts", "_ms")) else ""
        raise InvalidEventError(
            f"{name}={_shown(value)} is not valid; write a whole number of at least 0{unit}"
        )
    return value


def _member(kind: Any, name: str, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise InvalidEventError(
            f"{name}={_shown(value)} is unknown; write one of {known}"
        ) from None


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidEventError(
            f"an event is a JSON object, and {_shown(text)} is not JSON ({error}); correct it"
        ) from error


def _plain(value: Any) -> Any:
    """Return a value with lists for sequences and dicts for mappings."""
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"{name!r} is not a text, as a name in an object must be")
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_plain(member) for member in value]
    return value


def _is_text(value: str) -> bool:
    """Return whether UTF-8 and PostgreSQL can store a text."""
    return _NO_TEXT.search(value) is None


def _is_clean(value: str) -> bool:
    return _NOT_CLEAN.search(value) is None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(_shown(name) for name in names[:_SHOWN_NAMES])
    hidden = len(names) - _SHOWN_NAMES
    if hidden <= 0:
        return shown
    return f"{shown} and {hidden:,} more"


def _shown(value: Any) -> str:
    text = repr(value)
    if len(text) <= _SHOWN_CHARS:
        return text
    return f"{text[:_SHOWN_CHARS]}..."
