"""A gathered file: the decoded rows of a range of offsets of one partition, before their commit.

It has a sealed header on a line of its own of at most 8 KiB. The rows follow, as an Arrow IPC
stream in one LZ4 frame (FORMAT, gathered rows). The header has:

- `format`, `table_id`, `application`, and `writer`, a random name of the process;
- `low` and `high`: the positions of the application before and after the file;
- `first`: whether the file may be committed while the application has no position;
- `after`: the ids of earlier sources of the same name that the writer knew when it began. It is
  null for more than 100 ids, or if they are not known. Files of these sources are committed first.
  If another source of the name, which is not in the list, has a position in the table, it is a
  later one, and the file is never committed;
- `records`, `bytes` and `timestamps_ms`: the number and size of the messages, and their oldest and
  newest time; -1 for no time;
- `bad`: the number of rows to reject; `quarantine`: whether the commit may also reject rows that
  only it finds bad;
- `size`, `rows_crc32` and `plain_size` of the rows; a compressed byte expands to at most 256.

The rows have the table's columns by their logical names, and `_opal_deleted` if the table has a
delete condition. The metadata `opal.schema` of their Arrow schema is the table's schema when they
were decoded, as a commit has it. It gives each name and nested name its field id. The committer
finds columns by these ids: a column may be renamed, dropped, moved or widened before the commit.
Four more columns are notes:

- `_opal_bad`: why the row is to be rejected;
- `_opal_source`: the position of its message;
- `_opal_row`: the content of its message;
- `_opal_unchanged`: a JSON list of the columns whose values did not change, and are missing.

For missing values the commit takes those of the row's predecessor by the rule. It looks for the
predecessor among the rows of the commit, the processed rows and the pending rows. If the
predecessor is a delete, or is not found, the row is rejected. If another commit adds a row between
the two meanwhile, the committer looks again.

A writer that begins lists the folder before it reads the head, and continues where the chain of
files ends. It stops if a file of the name that it wants to write exists, or if none of its own
files begins or ends at the table's position: then another process writes for the application.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from opal_lake import checked, layout
from opal_lake.data.rejects import BAD
from opal_lake.decoding import decoding
from opal_lake.definition.schema import Schema, schema_from_json, schema_to_json
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, PreReleaseError
from opal_lake.log.commit import FORMAT_VERSION, canonical_json, seal, unseal
from opal_stream.formats.rows import DecodedRows
from opal_stream.kafka.applications import Application, parse_application
from opal_stream.kafka.consumed import Consumed

HEADER_BYTES = 8 << 10  # every header is at most this long
REPAIR = (
    "put back a good copy, or delete it and start its stream again, which reads these messages "
    "once more if Kafka still has them"
)
MAX_BEFORE = 100  # topic ids that a header lists
_MAX_INFLATED, _MAX_BYTES = 256, 1 << 31  # LZ4 makes 255 bytes of one at most
_WHAT = "gathered rows"
_SCHEMA = b"opal.schema"  # the key of the table's schema in the metadata of the rows
_UINT16, _UINT32, _INT32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")
_HEADER_FIELD, _COMPRESSION_FIELD = 2, 3  # of Arrow's Message, and of its RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header of a file; the module describes its fields.

    `consumed` are the messages of the file, whose offsets are `low` and `high`. `after` is None if
    the file does not list the earlier topics of its name.
    """

    table_id: str
    application: Application
    writer: str
    consumed: Consumed
    first: bool
    after: tuple[str, ...] | None = ()
    bad: int = 0
    quarantine: bool = False
    size: int = 0
    plain_size: int = 0
    crc32: int = 0

    @property
    def low(self) -> int:
        return self.consumed.low

    @property
    def high(self) -> int:
        return self.consumed.high

    @property
    def path(self) -> str:
        return layout.gathered_path(str(self.application), self.low)


def encode_gathered(header: Header, decoded: DecodedRows) -> bytes:
    """Return the bytes of a file: the header on a line of its own, then the rows."""
    rows = decoded.rows
    sink = pa.BufferOutputStream()
    schema = rows.schema.with_metadata({_SCHEMA: canonical_json(schema_to_json(decoded.schema))})
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_table(rows.combine_chunks())
    plain = sink.getvalue()
    body = pa.Codec("lz4").compress(plain, asbytes=True)
    header = replace(
        header,
        size=len(body),
        plain_size=plain.size,
        crc32=zlib.crc32(body),
        bad=len(rows) - rows[BAD].null_count,
    )
    return b"".join((seal(canonical_json(_to_json(header))), body))


def decode_header(data: bytes, path: str, table_id: str) -> Header:
    """Return the header of a file; `data` are at least its first `HEADER_BYTES`.

    Raises FormatError, which names the file, for a damaged file, or one of another path or table.
    """
    line, end, _ = data[:HEADER_BYTES].partition(b"\n")
    try:
        body = unseal(line + end, path)
    except PreReleaseError:
        raise
    except FormatError:
        raise FormatError(
            f"{path} is damaged, or is not a file of gathered rows; {REPAIR}"
        ) from None
    with decoding(path, _WHAT, REPAIR):
        header = _from_json(body)
    if header.path != path.removeprefix("/") or header.table_id != table_id:
        where = f"table {header.table_id}, from offset {header.low} of {header.application}"
        raise FormatError(f"{path} does not belong here: it holds rows of {where}; {REPAIR}")
    return header


def decode_rows(data: bytes, path: str, header: Header, spec: TableSpec) -> DecodedRows:
    """Return the rows of a whole file, with all current columns of the table.

    Raises FormatError for damaged rows, or rows that do not fit the table.
    """
    body = memoryview(data)[data.index(b"\n") + 1 :]
    if len(body) != header.size or zlib.crc32(body) != header.crc32:
        raise FormatError(
            f"{path} is damaged: its rows take {len(body)} bytes with crc32 "
            f"{zlib.crc32(body):08x}, but the header records {header.size} bytes with "
            f"{header.crc32:08x}; {REPAIR}"
        )
    with decoding(path, _WHAT, REPAIR):
        plain = pa.Codec("lz4").decompress(body, header.plain_size)
        _check_messages(plain)
        with pa.ipc.open_stream(plain) as stream:
            _check_types(stream.schema)
            rows = stream.read_all()
        # Columns that hold only nulls take no bytes: a few bytes could claim billions of rows
        if len(rows) > header.plain_size:
            raise ValueError(f"{header.plain_size:,} bytes claim to hold {len(rows):,} rows")
        rows.validate(full=True)
        schema = _schema_of(rows)
        return DecodedRows(rows=rows.replace_schema_metadata(), schema=schema).fitted(spec)


def _schema_of(rows: pa.Table) -> Schema:
    """Return the table's schema when the rows were decoded."""
    text = (rows.schema.metadata or {}).get(_SCHEMA)
    if text is None:
        raise ValueError(f"its rows lack the metadata {_SCHEMA.decode()!r}")
    return schema_from_json(json.loads(text))


def _check_messages(plain: pa.Buffer) -> None:
    """Raise ValueError for batches compressed twice: they may expand to any size."""
    for message in pa.ipc.MessageReader.open_stream(plain):
        if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
            raise ValueError("its rows are compressed twice")


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the flatbuffer of a record batch names a compression."""
    root = _UINT32.unpack_from(metadata)[0]
    header = _field_at(metadata, root, _HEADER_FIELD)
    batch = header + _UINT32.unpack_from(metadata, header)[0]
    return _field_at(metadata, batch, _COMPRESSION_FIELD) > 0


def _field_at(metadata: bytes, table: int, number: int) -> int:
    """Return where a field of a flatbuffer's table lies; 0 if the table lacks it."""
    known_fields = table - _INT32.unpack_from(metadata, table)[0]
    slot = 2 * _UINT16.size + number * _UINT16.size
    if slot >= _UINT16.unpack_from(metadata, known_fields)[0]:
        return 0
    offset: int = _UINT16.unpack_from(metadata, known_fields + slot)[0]
    if offset:
        return table + offset
    return 0


def _check_types(schema: pa.Schema) -> None:
    """Raise ValueError for types that store a value once for many rows."""
    for column in schema:
        text = str(column.type)
        if "dictionary<" in text or "run_end_encoded<" in text:
            raise ValueError(f"column {column.name!r} has type {text}, which no stream writes")


def _to_json(header: Header) -> dict[str, Any]:
    consumed = header.consumed
    return {
        "format": FORMAT_VERSION,
        "table_id": header.table_id,
        "application": str(header.application),
        "writer": header.writer,
        "first": header.first,
        "after": None if header.after is None else [*header.after],
        "low": consumed.low,
        "high": consumed.high,
        "records": consumed.records,
        "bytes": consumed.bytes,
        "timestamps_ms": [consumed.oldest_ms, consumed.newest_ms],
        "bad": header.bad,
        "quarantine": header.quarantine,
        "size": header.size,
        "plain_size": header.plain_size,
        "rows_crc32": header.crc32,
    }


def _from_json(body: Mapping[str, Any]) -> Header:
    if body["format"] != FORMAT_VERSION:
        raise ValueError(
            f"format {body['format']!r}; this version reads {FORMAT_VERSION}: upgrade opal-lake"
        )
    application = parse_application(checked.text(body["application"]))
    low, high = checked.count(body["low"]), checked.count(body["high"])
    size, plain_size = checked.count(body["size"]), checked.count(body["plain_size"])
    if application is None:
        raise ValueError(f"{body['application']!r} is not a partition of a stream")
    if high <= low:
        raise ValueError(f"it goes from offset {low} to {high}")
    if size > _MAX_BYTES or plain_size > min(_MAX_BYTES, _MAX_INFLATED * (size + 1)):
        raise ValueError(f"{size:,} bytes claim to hold {plain_size:,}")
    oldest_ms, newest_ms = map(checked.word, checked.listed(body["timestamps_ms"]))
    records, message_bytes = checked.count(body["records"]), checked.count(body["bytes"])
    after: tuple[str, ...] | None = None
    if body["after"] is not None:
        after = tuple(map(checked.text, checked.listed(body["after"])))
    return Header(
        table_id=checked.plain_id(body["table_id"]),
        application=application,
        writer=checked.plain_id(body["writer"]),
        consumed=Consumed(
            low=low,
            high=high,
            records=records,
            bytes=message_bytes,
            oldest_ms=oldest_ms,
            newest_ms=newest_ms,
        ),
        first=checked.flag(body["first"]),
        after=after,
        bad=checked.count(body["bad"]),
        quarantine=checked.flag(body["quarantine"]),
        size=size,
        plain_size=plain_size,
        crc32=checked.crc(body["rows_crc32"]),
    )
