"""Columns that come from the message itself instead of its value: `at=@timestamp`, `customer=@key`, `trace=@header.trace-id`."""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.errors import InvalidInputError
from opal_stream.formats.batch import Headers, MessageBatch
from opal_stream.formats.json_lines import of_microseconds

KEY, KEY_MEMBER, HEADER, SOURCE_MEMBER = "@key", "@key.", "@header.", "@source."
PLAIN = ("@topic", "@partition", "@offset", "@timestamp", KEY)
OF_EVENTS = ("@op", "@ts_ms")
_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError)
KNOWN = f"{', '.join(PLAIN)}, {KEY_MEMBER}MEMBER, {HEADER}NAME, and of Debezium's events {', '.join(OF_EVENTS)}, {SOURCE_MEMBER}MEMBER"


def check_columns(
    columns: Mapping[str, str], schema: pa.Schema, *, debezium: bool
) -> dict[str, str]:
    """Columns of the table, and what there is to take."""
    known = frozenset(schema.names)
    for name, path in columns.items():
        if name not in known:
            raise InvalidInputError(
                f"column {name!r} is not in the table, which has {', '.join(map(repr, schema.names))}"
            )
        of_event = path in OF_EVENTS or path.startswith(SOURCE_MEMBER)
        if not (path in PLAIN or path.startswith((KEY_MEMBER, HEADER)) or (of_event and debezium)):
            raise InvalidInputError(
                f"column {name}={path}: nothing is called {path!r}; there are {KNOWN}"
            )
    return dict(columns)


def message_column(batch: MessageBatch, path: str, kind: pa.DataType) -> pa.Array:
    """What the messages hold at a path, but for keys, as the column's type.

    ValueError where one has no such value.
    """
    if path == "@timestamp":
        moments = pa.array(
            [None if moment < 0 else moment for moment in batch.timestamps_ms], pa.int64()
        )
        return (
            moments
            if pa.types.is_integer(kind)
            else moments.cast(pa.timestamp("ms", tz=getattr(kind, "tz", None))).cast(kind)
        )
    if path in ("@partition", "@offset"):
        return pa.array(
            batch.partitions if path == "@partition" else batch.offsets, pa.int64()
        ).cast(kind)
    if path == "@topic":
        return pa.array(batch.topics, pa.string()).cast(kind)
    return of_bytes(
        [_header(headers, path.removeprefix(HEADER)) for headers in batch.headers], kind
    )


def _header(headers: Headers, name: str) -> bytes | None:
    """The last of that name, as Kafka's own readers take it."""
    value = next((value for key, value in reversed(headers) if key == name), None)
    return value.encode() if isinstance(value, str) else value


def of_bytes(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Bytes as they are, or what their text says."""
    if pa.types.is_binary(kind):
        return pa.array(values, kind)
    texts = pa.array([None if value is None else value.decode() for value in values], pa.string())
    if pa.types.is_timestamp(kind):
        texts = of_microseconds(texts)
    return texts if kind == pa.string() else pc.cast(texts, kind)


def each(
    count: int, path: str, kind: pa.DataType, part: Callable[[int, int], pa.Array]
) -> tuple[pa.Array, dict[int, str]]:
    """Make all values of a column together; one by one where that fails, with the reasons."""
    try:
        return part(0, count), {}
    except _ERRORS:
        pass
    parts: list[pa.Array] = []
    wrong: dict[int, str] = {}
    for position in range(count):
        try:
            parts.append(part(position, position + 1))
        except _ERRORS as error:
            parts.append(pa.nulls(1, kind))
            wrong[position] = f"{path}: {str(error).splitlines()[0][:200]}"
    return pa.concat_arrays(parts), wrong
