"""The decoding of Kafka's messages to rows, in Spark's tasks.

The decoder is the one of the streams without Spark, so both decode a message to the same row. A
task that meets a new schema, or columns that the table lacks, does not decide what to do. It fails,
and its error has the schema or columns. The driver decides for all tasks, and runs the micro-batch
again.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from opal_lake.engine.executor import Batches
from opal_lake.errors import InvalidInputError
from opal_spark.engine.columns import spark_schema
from opal_spark.engine.tasks import forget_archives, with_same_version
from opal_stream.formats.batch import Headers, MessageBatch
from opal_stream.formats.decoder import Decoded, Decoder
from opal_stream.formats.registry import HEAD_BYTES
from opal_stream.formats.schemas.new_columns import NewColumns

_COLUMNS = ("topic", "partition", "offset", "unix_millis(timestamp)", "key", "value")
_UNDECIDED = "the driver must decide about a message: "
# The JSON ends with its line: Spark appends the stack trace in further lines
_MET = re.compile(re.escape(_UNDECIDED) + r"(\{.*?\})(?:\n|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A message for which the driver must decide: see the module.

    `source` names the message. For a new schema, `value_head` and `key_head` are the beginnings of
    the message's value and key. For columns or members that the table lacks, `columns` has their
    types, `names` the columns, `paths` the members.
    """

    source: str
    value_head: bytes | None = None
    key_head: bytes | None = None
    columns: pa.Schema | None = None
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def decoded_rows(messages: DataFrame, decoder: Decoder) -> DataFrame:
    """Return the good and bad rows of a micro-batch, as a source of an ingest."""
    schema = spark_schema(decoder.spec, physical=False)
    for column in _marks(decoder):
        is_boolean = column.type == pa.bool_()
        schema = schema.add(column.name, BooleanType() if is_boolean else StringType())
    # Plain names, because Spark may confuse names that differ only in case
    plain = StructType()
    for index, column in enumerate(schema.fields):
        plain.add(StructField(f"_{index}", column.dataType))
    columns = [*_COLUMNS]
    if decoder.needs_headers:
        columns.append("headers")
    decode = with_same_version(partial(_decode, decoder=decoder))
    rows = messages.selectExpr(*columns).mapInArrow(decode, plain)
    return rows.toDF(*schema.names)


def met_in(text: str) -> Met | None:
    """Return the message that a task's error names; None for another error."""
    match = _MET.search(text)
    if match is None:
        return None
    parts = json.loads(match[1])
    columns = _unpacked(parts["columns"])
    schema: pa.Schema | None = None
    if columns:
        schema = pa.ipc.read_schema(pa.py_buffer(columns))
    return Met(
        source=parts["source"],
        value_head=_unpacked(parts["value_head"]),
        key_head=_unpacked(parts["key_head"]),
        columns=schema,
        names=tuple(parts["names"]),
        paths=tuple(parts["paths"]),
    )


def _marks(decoder: Decoder) -> list[pa.Field]:
    """Return the columns of a row next to those of the table."""
    return list(decoder.row_schema)[len(decoder.spec.schema.fields) :]


def _decode(batches: Batches, *, decoder: Decoder) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        messages = message_batch(batch)
        unseen = decoder.unseen(messages)
        if unseen is not None:
            raise _undecided(
                messages.source(unseen),
                value_head=_head_of(messages.values[unseen]),
                key_head=_head_of(messages.keys[unseen]),
            )
        rows = _settled(decoder.decode(messages), messages).combine_chunks()
        names = [f"_{index}" for index in range(rows.num_columns)]
        yield from rows.rename_columns(names).to_batches()
    forget_archives()


def _settled(decoded: Decoded, messages: MessageBatch) -> pa.Table:
    """Return the decoded rows; raise an error for the driver for new columns."""
    if decoded.new is None:
        return decoded.rows
    new, first = decoded.new, decoded.new.first
    raise _undecided(
        messages.source(first), new=new, names=new.names.get(first, ()), paths=new.paths(first)
    )


def _undecided(
    source: str,
    *,
    value_head: bytes | None = None,
    key_head: bytes | None = None,
    new: NewColumns | None = None,
    names: tuple[str, ...] = (),
    paths: tuple[str, ...] = (),
) -> InvalidInputError:
    """Return the error by which a task hands a Kafka message to the driver.

    Its text has the parts of a Met as JSON, which `met_in` reads.
    """
    columns = None if new is None else new.columns.serialize().to_pybytes()
    parts: dict[str, Any] = {
        "source": source,
        "value_head": _packed(value_head),
        "key_head": _packed(key_head),
        "columns": _packed(columns),
        "names": names,
        "paths": paths,
    }
    return InvalidInputError(f"{_UNDECIDED}{json.dumps(parts)}")


def _head_of(content: bytes | None) -> bytes | None:
    return None if content is None else content[:HEAD_BYTES]


def _packed(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def message_batch(batch: pa.RecordBatch) -> MessageBatch:
    """Return messages of Spark's source in the form of the decoder."""
    columns = [column.to_pylist() for column in batch.columns]
    topics, partitions, offsets, moments, keys, values = columns[: len(_COLUMNS)]
    headers: list[Headers] = []
    if len(columns) > len(_COLUMNS):
        headers = [_headers(message_headers) for message_headers in columns[-1]]
    return MessageBatch(
        topics=topics,
        partitions=partitions,
        offsets=offsets,
        timestamps_ms=moments,
        keys=keys,
        values=values,
        headers=headers,
    )


def _headers(headers: Sequence[Mapping[str, Any]] | None) -> Headers:
    return [(header["key"], header["value"]) for header in headers or ()]
