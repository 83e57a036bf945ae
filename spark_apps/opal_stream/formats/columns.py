"""Columns that come from the message itself instead of its value.

For example `at=@timestamp`, `customer=@key`, `trace=@header.trace-id`.
"""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.definition.schema import Schema
from opal_lake.errors import InvalidInputError
from opal_stream.formats.batch import Headers, MessageBatch
from opal_stream.formats.json_lines import without_extra_digits

KEY, KEY_MEMBER, HEADER, SOURCE_MEMBER = "@key", "@key.", "@header.", "@source."
PLAIN = ("@topic", "@partition", "@offset", "@timestamp", KEY)
OF_EVENTS = ("@op", "@ts_ms")
_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError)
KNOWN = (
    f"{', '.join(PLAIN)}, {KEY_MEMBER}MEMBER, {HEADER}NAME, "
    f"and of Debezium's events {', '.join(OF_EVENTS)}, {SOURCE_MEMBER}MEMBER"
)


def check_columns(columns: Mapping[str, str], schema: Schema, *, debezium: bool) -> dict[str, str]:
    """Return a copy of `columns`.

    Raise InvalidInputError for an unknown column or path.
    """
    known = frozenset(schema.names)
    for name, path in columns.items():
        if name not in known:
            names = ", ".join(map(repr, schema.names))
            raise InvalidInputError(
                f"column {name!r} is not in the table{schema.past_of(name)}; choose one of its "
                f"columns: {names}"
            )
        is_of_message = path in PLAIN or path.startswith((KEY_MEMBER, HEADER))
        is_of_event = path in OF_EVENTS or path.startswith(SOURCE_MEMBER)
        if not is_of_message and not (is_of_event and debezium):
            raise InvalidInputError(f"column {name}={path}: unknown path {path!r}; use {KNOWN}")
    return dict(columns)


def message_column(batch: MessageBatch, path: str, kind: pa.DataType) -> pa.Array:
    """Return the values at a path of messages, in a column's type.

    Not for paths of keys.

    Raises an error if a value does not fit the type.
    """
    if path == "@timestamp":
        return _timestamps(batch, kind)
    if path == "@partition":
        return pa.array(batch.partitions, pa.int64()).cast(kind)
    if path == "@offset":
        return pa.array(batch.offsets, pa.int64()).cast(kind)
    if path == "@topic":
        return pa.array(batch.topics, pa.string()).cast(kind)
    name = path.removeprefix(HEADER)
    return array_of_bytes([_header(headers, name) for headers in batch.headers], kind)


def _timestamps(batch: MessageBatch, kind: pa.DataType) -> pa.Array:
    """Return the messages' timestamps.

    In a column of integers as milliseconds since 1970.
    """
    # -1 means no timestamp
    moments = [None if moment < 0 else moment for moment in batch.timestamps_ms]
    milliseconds = pa.array(moments, pa.int64())
    if pa.types.is_integer(kind):
        return milliseconds
    zone = getattr(kind, "tz", None)
    return milliseconds.cast(pa.timestamp("ms", tz=zone)).cast(kind)


def _header(headers: Headers, name: str) -> bytes | None:
    """Return the last header of a name, as Kafka's own readers do."""
    for key, value in reversed(headers):
        if key == name:
            if isinstance(value, str):
                return value.encode()
            return value
    return None


def array_of_bytes(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Return values in a column's type: bytes unchanged, others parsed from text."""
    if pa.types.is_binary(kind):
        return pa.array(values, kind)
    texts = pa.array([None if value is None else value.decode() for value in values], pa.string())
    if pa.types.is_timestamp(kind):
        texts = without_extra_digits(texts)
    if kind == pa.string():
        return texts
    return pc.cast(texts, kind)


def column_and_problems(
    count: int, path: str, kind: pa.DataType, values_between: Callable[[int, int], pa.Array]
) -> tuple[pa.Array, dict[int, str]]:
    """Return the `count` values of a column, and by position why a value is bad.

    `values_between` makes the values from one position up to another. All are made at once, and one
    by one only if that fails. A bad value is null.
    """
    try:
        return values_between(0, count), {}
    except _ERRORS:
        pass
    parts: list[pa.Array] = []
    problems: dict[int, str] = {}
    for position in range(count):
        try:
            parts.append(values_between(position, position + 1))
        except _ERRORS as error:
            parts.append(pa.nulls(1, kind))
            first_line = str(error).splitlines()[0]
            problems[position] = f"{path}: {first_line[:200]}"
    return pa.concat_arrays(parts), problems
