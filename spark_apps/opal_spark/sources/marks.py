"""What a reader records about a row: why it is bad, its file, and its text before it was typed."""

import re
from collections.abc import Sequence
from functools import reduce
from operator import add, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from opal_lake.data.rejects import BAD, ROW, SOURCE
from opal_lake.definition.schema import Atomic, Field
from opal_lake.definition.table_spec import MAX_KEY_BYTES, TableSpec
from opal_spark.engine.columns import quoted
from opal_spark.sources.cells import wrong_type

FILE = "_opal_file"
PATH, BLOCK = "path", "block"
_LOCAL = "^file:/+"  # Spark writes one slash or three


def file_column(rows: DataFrame) -> Column:
    """The file of each row, as Spark writes it: a URI with percent signs; and where the block begins that a task reads of it."""
    about = rows.metadataColumn("_metadata")
    return F.struct(
        about.getField("file_path").alias(PATH), about.getField("file_block_start").alias(BLOCK)
    ).alias(FILE)


def file_name() -> Column:
    """The unquoted path of the file."""
    return _unquoted(F.col(FILE).getField(PATH))


def plain_uris(paths: Column) -> Column:
    """Of files as Spark writes them, each as `plain_uri` makes it."""
    return F.regexp_replace(_unquoted(paths), _LOCAL, "file:/")


def plain_uri(uri: str) -> str:
    """A file's one name."""
    return re.sub(_LOCAL, "file:/", uri)


def _unquoted(paths: Column) -> Column:
    """A plus sign is not a space here."""
    return F.try_url_decode(F.replace(paths, F.lit("+"), F.lit("%2B")))


def mark(
    rows: DataFrame,
    spec: TableSpec,
    faults: Sequence[Column],
    source: Column,
    row: Column | None = None,
) -> DataFrame:
    """The table's columns, with the first fault of each row, and its file. Only rows that may be rejected carry their source and text."""
    marked = rows.withColumn(BAD, F.coalesce(*faults, F.lit(None).cast("string")))
    suspect = _suspect(spec)
    notes = [F.col(BAD), F.when(suspect, source).alias(SOURCE)]
    notes += [F.when(suspect, row).alias(ROW)] if row is not None else []
    return marked.select(
        *[F.col(quoted(name)) for name in spec.schema.names],
        *notes,
        *[name for name in (FILE,) if name in rows.columns],
    )


def _suspect(spec: TableSpec) -> Column:
    """Rows that are bad already, or that `opal_lake.data.rejects` will reject."""
    required = [F.col(quoted(column.name)).isNull() for column in (*spec.keys, spec.delta)]
    sizes = [F.octet_length(quoted(key.name)) for key in spec.keys if _is_sized(key)]
    long = [reduce(add, sizes) > MAX_KEY_BYTES] if sizes else []
    return reduce(or_, [F.col(BAD).isNotNull(), *required, *long])


def _is_sized(key: Field) -> bool:
    return isinstance(key.type, Atomic) and key.type.name in ("string", "binary")


def fault_of(text: Column, name: str, kind: Atomic) -> Column:
    """The reason if there was a text that is not a value of the column."""
    return F.when(text.isNotNull() & F.col(quoted(name)).isNull(), F.lit(wrong_type(name, kind)))
