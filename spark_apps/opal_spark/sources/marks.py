"""Notes of a reader on a row: why it is bad, its file, and its original text."""

import re
from collections.abc import Sequence
from functools import reduce
from operator import add, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from opal_lake.data.rejects import BAD, ROW, SOURCE
from opal_lake.definition.schema import Atomic, Field
from opal_lake.definition.table_spec import MAX_KEY_BYTES, TableSpec
from opal_spark.engine.columns import columns_named, quoted
from opal_spark.sources.cells import wrong_type

FILE = "_opal_file"
PATH, BLOCK = "path", "block"
_LOCAL = "^file:/+"  # Spark writes one slash or three


def file_column(rows: DataFrame) -> Column:
    """Return a struct of each row's file and the start of the task's block.

    The file is a URI as Spark writes it, with percent encoding.
    """
    metadata = rows.metadataColumn("_metadata")
    path = metadata.getField("file_path").alias(PATH)
    block = metadata.getField("file_block_start").alias(BLOCK)
    return F.struct(path, block).alias(FILE)


def file_name() -> Column:
    """Return the unquoted path of the file."""
    return _unquoted(F.col(FILE).getField(PATH))


def plain_uris(paths: Column) -> Column:
    """Return paths of Spark's file column in the form of `plain_uri`."""
    return F.regexp_replace(_unquoted(paths), _LOCAL, "file:/")


def plain_uri(uri: str) -> str:
    """Return the form of a file's URI in which URIs of one file are equal."""
    return re.sub(_LOCAL, "file:/", uri)


def _unquoted(paths: Column) -> Column:
    # Decoding would replace a plus sign by a space, but in a path it is a plus sign
    return F.try_url_decode(F.replace(paths, F.lit("+"), F.lit("%2B")))


def mark(
    rows: DataFrame,
    spec: TableSpec,
    faults: Sequence[Column],
    source: Column,
    row: Column | None = None,
) -> DataFrame:
    """Return the table's columns, each row's first fault, and a reader's notes.

    Only a row that may be rejected has its position `source` and its original text `row`.
    """
    marked = rows.withColumn(BAD, F.coalesce(*faults, F.lit(None).cast("string")))
    may_be_rejected = _may_be_rejected(spec)
    columns = columns_named(spec.schema.names)
    columns += [F.col(BAD), F.when(may_be_rejected, source).alias(SOURCE)]
    if row is not None:
        columns.append(F.when(may_be_rejected, row).alias(ROW))
    if FILE in rows.columns:
        columns.append(F.col(FILE))
    return marked.select(*columns)


def _may_be_rejected(spec: TableSpec) -> Column:
    """Return whether a row is bad, lacks a key or its delta, or has too long a key.

    `opal_lake.data.rejects` also rejects text that is not UTF-8; such a row gets no position.
    """
    # The built-in delta is filled later
    given = [column for _, column in spec.required if column.id != spec.schema.commit_id]
    required = columns_named(column.name for column in given)
    reasons = [F.col(BAD).isNotNull()]
    reasons += [column.isNull() for column in required]
    key_texts = [key for key in spec.keys if _is_text_or_binary(key)]
    if key_texts:
        sizes = [F.octet_length(quoted(key.name)) for key in key_texts]
        reasons.append(reduce(add, sizes) > MAX_KEY_BYTES)
    return reduce(or_, reasons)


def _is_text_or_binary(key: Field) -> bool:
    return isinstance(key.type, Atomic) and key.type.name in ("string", "binary")


def fault_of(text: Column, name: str, kind: Atomic) -> Column:
    """Return the reason if a text is not a value of the column, which is null then."""
    is_lost = text.isNotNull() & F.col(quoted(name)).isNull()
    return F.when(is_lost, F.lit(wrong_type(name, kind)))
