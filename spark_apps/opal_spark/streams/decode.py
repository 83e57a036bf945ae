"""Kafka's messages to rows, in Spark's tasks, by the decoder of the streams without Spark: a message means the same to both.

A task that meets a new schema, or columns that the table lacks, changes nothing by itself. It fails and names what it met; the driver
answers for all tasks, and the micro-batch runs again.
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
_MET = re.compile(r"a message has what the driver is to decide: (\{.*?\})(?:\n|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What a task met, and in which message: new schemas, or columns and members that the table lacks.

    Of a message with a new schema it has the heads of value and key, None where the message has none.
    """

    source: str
    value_head: bytes | None = None
    key_head: bytes | None = None
    columns: pa.Schema | None = None
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def decoded_rows(messages: DataFrame, decoder: Decoder) -> DataFrame:
    """The rows of a micro-batch, bad ones among them, as an ingest takes them."""
    marks = [
        StructField(name, BooleanType() if kind == pa.bool_() else StringType())
        for name, kind in _marks(decoder)
    ]
    schema = StructType([*spark_schema(decoder.spec, physical=False).fields, *marks])
    plain = StructType(
        [StructField(f"_{index}", column.dataType) for index, column in enumerate(schema.fields)]
    )
    chosen = messages.selectExpr(*_COLUMNS, *(["headers"] if decoder.needs_headers else []))
    return chosen.mapInArrow(with_same_version(partial(_decode, decoder=decoder)), plain).toDF(
        *schema.names
    )


def met_in(text: str) -> Met | None:
    """What a task named in the error that it failed with."""
    if (match := _MET.search(text)) is None:
        return None
    found = json.loads(match[1])
    columns = _unpacked(found["columns"])
    schema = pa.ipc.read_schema(pa.py_buffer(columns)) if columns else None
    return Met(
        source=found["source"],
        value_head=_unpacked(found["value_head"]),
        key_head=_unpacked(found["key_head"]),
        columns=schema,
        names=tuple(found["names"]),
        paths=tuple(found["paths"]),
    )


def _marks(decoder: Decoder) -> list[tuple[str, pa.DataType]]:
    """The columns that a row has beside those of the table."""
    return [
        (column.name, column.type)
        for column in list(decoder.row_schema)[len(decoder.spec.schema.fields) :]
    ]


def _decode(batches: Batches, *, decoder: Decoder) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        messages = message_batch(batch)
        if (unseen := decoder.unseen(messages)) is not None:
            raise _asking(
                messages.source(unseen),
                value_head=_head_of(messages.values[unseen]),
                key_head=_head_of(messages.keys[unseen]),
            )
        rows = _settled(decoder.decode(messages), messages).combine_chunks()
        yield from rows.rename_columns(
            [f"_{index}" for index in range(rows.num_columns)]
        ).to_batches()
    forget_archives()


def _settled(decoded: Decoded, messages: MessageBatch) -> pa.Table:
    if decoded.new is None:
        return decoded.rows
    new, first = decoded.new, decoded.new.first
    raise _asking(
        messages.source(first), new=new, names=new.found.get(first, ()), paths=new.paths(first)
    )


def _asking(
    source: str,
    *,
    value_head: bytes | None = None,
    key_head: bytes | None = None,
    new: NewColumns | None = None,
    names: tuple[str, ...] = (),
    paths: tuple[str, ...] = (),
) -> InvalidInputError:
    columns = None if new is None else new.columns.serialize().to_pybytes()
    found: dict[str, Any] = {
        "source": source,
        "value_head": _packed(value_head),
        "key_head": _packed(key_head),
        "columns": _packed(columns),
    }
    found |= {"names": names, "paths": paths}
    return InvalidInputError(f"a message has what the driver is to decide: {json.dumps(found)}")


def _head_of(content: bytes | None) -> bytes | None:
    return None if content is None else content[:HEAD_BYTES]


def _packed(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def message_batch(batch: pa.RecordBatch) -> MessageBatch:
    """As the decoder takes messages."""
    columns = [column.to_pylist() for column in batch.columns]
    topics, partitions, offsets, moments, keys, values = columns[: len(_COLUMNS)]
    headers: list[Headers] = (
        [_headers(one) for one in columns[-1]] if len(columns) > len(_COLUMNS) else []
    )
    return MessageBatch(
        topics=topics,
        partitions=partitions,
        offsets=offsets,
        timestamps_ms=moments,
        keys=keys,
        values=values,
        headers=headers,
    )


def _headers(found: Sequence[Mapping[str, Any]] | None) -> Headers:
    return [(header["key"], header["value"]) for header in found or ()]
