"""Gathered files that claim too much fail with an error before a row is decoded."""

import json
import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from opal_lake.definition.schema import schema_to_json
from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.errors import FormatError
from opal_stream.formats.rows import DecodedRows, row_schema
from opal_stream.gathered.file import Header, decode_header, decode_rows, encode_gathered
from opal_stream.kafka.applications import Application
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition

MANY = 4_000_000


def spec_of_table() -> TableSpec:
    return plan_spec(
        pa.schema([("k", pa.int64()), ("at", pa.int64())]), TableLayout(keys=["k"], delta="at")
    )


def rows_of_table(count: int) -> pa.Table:
    schema = row_schema(spec_of_table())
    zeros = pa.array(np.zeros(count, np.int64))
    texts = pa.nulls(count, pa.string())
    columns = [zeros if name in ("k", "at") else texts for name in schema.names]
    return pa.table(columns, schema=schema)


def header() -> Header:
    partition = Partition(topic="orders", number=0)
    application = Application(stream="main", partition=partition, topic_id="id")
    flushed = Consumed(low=0, high=5, records=5)
    return Header(table_id="t", application=application, writer="w", consumed=flushed, first=True)


def gathered(
    rows: pa.Table, compression: str | None = None, *, has_schema: bool = True
) -> tuple[bytes, Header]:
    """Return a file whose batches may be compressed within the compressed frame."""
    schema = spec_of_table().schema
    whole = encode_gathered(header(), DecodedRows(rows=rows, schema=schema))
    line = whole[: whole.index(b"\n") + 1]
    known = decode_header(line, header().path, "t")
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    metadata = {b"opal.schema": json.dumps(schema_to_json(schema))} if has_schema else {}
    with pa.ipc.new_stream(sink, rows.schema.with_metadata(metadata), options=options) as stream:
        stream.write_table(rows)
    plain = sink.getvalue()
    body = pa.Codec("lz4").compress(plain, asbytes=True)
    forged = replace(known, size=len(body), plain_size=plain.size, crc32=zlib.crc32(body))
    return line + body, forged


def test_rows_are_read_as_they_were_written() -> None:
    rows = rows_of_table(10)
    data, known = gathered(rows)
    assert decode_rows(data, "x.rows", known, spec_of_table()).rows.equals(rows)


def test_rows_compressed_twice_are_refused() -> None:
    data, known = gathered(rows_of_table(MANY), "zstd")
    assert len(data) < 20_000
    before = pa.total_allocated_bytes()
    with pytest.raises(FormatError, match=r"x\.rows .*compressed twice"):
        decode_rows(data, "x.rows", known, spec_of_table())
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_file_with_more_rows_than_bytes_is_refused() -> None:
    data, known = gathered(pa.table({"k": pa.nulls(MANY), "_opal_bad": pa.nulls(MANY)}))
    with pytest.raises(FormatError, match=r"x\.rows .*4,000,000 rows"):
        decode_rows(data, "x.rows", known, spec_of_table())


def test_types_that_share_values_between_rows_are_refused() -> None:
    places = pa.array(np.zeros(10, np.int32))
    words = pa.DictionaryArray.from_arrays(places, pa.array(["x"]))
    data, known = gathered(pa.table({"_opal_bad": words}))
    with pytest.raises(FormatError, match=r"x\.rows .*dictionary"):
        decode_rows(data, "x.rows", known, spec_of_table())


def test_rows_without_the_table_schema_are_refused() -> None:
    data, known = gathered(rows_of_table(10), has_schema=False)
    with pytest.raises(FormatError, match=r"x\.rows .*lack the metadata 'opal.schema'"):
        decode_rows(data, "x.rows", known, spec_of_table())
