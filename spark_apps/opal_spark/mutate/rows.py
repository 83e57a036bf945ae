"""Increments as rows of one form: the record, what it is called by, what it does, where it stands, and what is wrong with it."""

from collections.abc import Mapping, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, StringType, StructField, StructType

from opal_lake.errors import InvalidInputError
from opal_lake.operations.mutate import Mutate
from opal_lake.source import BY_SUFFIX
from opal_lake.storage.spark_path import hadoop_uri, spark_paths
from opal_spark.engine.columns import quoted, spark_type_name
from opal_spark.engine.session import STRICT, few_listing_tasks
from opal_spark.mutate.csv_text import CORRUPT, increment_options, is_utf8, read_options
from opal_spark.mutate.groups import Form, Readable
from opal_spark.mutate.record import (
    TIME_FORMS,
    Record,
    fitted,
    is_nested,
    key_twice,
    misread,
    names_told_apart,
    other_members,
    rounded,
    several_values,
    unknown_names,
)
from opal_spark.sources.marks import plain_uri, plain_uris
from opal_spark.sources.text.csv_lines import is_true, separator
from opal_spark.sources.text.csv_quotes import UNCLOSED, open_quote
from opal_spark.sources.text.json_files import MORE_VALUES

# None of these may be a field of somebody's records
ROW, DELETED, ORDER, UNTIMED, FILE, BLOCK, RANK = (
    f"_opal_{name}" for name in ("row", "deleted", "ordered", "untimed", "file", "block", "rank")
)
BAD, RAW, HEADER, LINE, COPY, HAS_OP = (
    f"_opal_{name}" for name in ("bad", "raw", "header", "line", "copy", "has_op")
)
_URI, _TEXT, _PARSED, _END = "_opal_uri", "_opal_text", "_opal_parsed", "_opal_end"
_FAULT, _SUFFIX, _FOLDERS = "_opal_fault", "_opal_suffix", "_opal_folders"
_VALUE = "value"  # of Spark's source of text
_RAGGED = "the row has more or fewer fields than there are (where fields hold line breaks, set multiLine=true)"
_BREAK = "a line break, which the master's CSV takes with the option multiLine=true only"
_ENCODED = "the line is not UTF-8; give the encoding, as ISO-8859-1"


def key(number: int) -> str:
    """The name of an id's field among the rows."""
    return f"_opal_id_{number}"


def keys(record: Record) -> list[str]:
    return [key(number) for number in range(len(record.ids))]


def read_increments(
    spark: SparkSession,
    forms: Mapping[Form, Sequence[Readable]],
    job: Mutate,
    record: Record,
    options: Mapping[str, str],
) -> DataFrame:
    """All of them. Rows that are bad have a reason, and their text if the format has one."""
    parts = []
    for form, files in forms.items():
        read = {"csv": _csv, "json": _json}.get(form.format, _columnar)
        parts.append(
            _rows(
                _placed(spark, read(spark, form, files, record, options), files), form, job, record
            )
        )
    return reduce(DataFrame.unionByName, parts)


def _placed(spark: SparkSession, rows: DataFrame, files: Sequence[Readable]) -> DataFrame:
    """With the number of each row's file, and what its name and its folders say."""
    folders = pa.array(
        [list(file.increment.folders.items()) for file in files], pa.map_(pa.string(), pa.string())
    )
    table = pa.table(
        {
            _URI: [plain_uri(hadoop_uri(file.storage, file.path)) for file in files],
            FILE: pa.array([file.number for file in files], pa.int32()),
            _SUFFIX: pa.array([file.increment.suffix for file in files], pa.int64()),
            _FOLDERS: folders,
        }
    )
    found = rows.join(F.broadcast(spark.createDataFrame(table)), _URI, "left")
    number = F.coalesce(
        FILE, F.raise_error(F.concat(F.lit("no increment is called "), F.col(_URI))).cast("int")
    )
    return found.withColumn(FILE, number)


def _load(
    spark: SparkSession,
    kind: str,
    files: Sequence[Readable],
    schema: StructType | None,
    options: Mapping[str, str],
) -> DataFrame:
    """With the file of each row and its place there: blocks of a file follow each other, and so do ranks within a block."""
    paths = [path for file in files for path in spark_paths(file.storage, [file.path])]
    reader = spark.read.format(kind).options(**{**options, **STRICT, "recursiveFileLookup": "true"})
    with few_listing_tasks(spark), names_told_apart(f"{files[0].increment.source} and its like"):
        rows = (reader if schema is None else reader.schema(schema)).load(paths)
    about = rows.metadataColumn("_metadata")
    places = [
        plain_uris(about.getField("file_path")).alias(_URI),
        about.getField("file_block_start").alias(BLOCK),
        F.monotonically_increasing_id().alias(RANK),
    ]
    return rows.select(*[F.col(quoted(name)) for name in rows.columns], *places)


def numbered_lines(
    spark: SparkSession, files: Sequence[Readable], options: Mapping[str, str]
) -> DataFrame:
    """Each line of text files with its number from 1, and which of equal lines of its file it is."""
    numbers = F.create_map(
        *[
            part
            for file in files
            for part in (F.lit(plain_uri(hadoop_uri(file.storage, file.path))), F.lit(file.number))
        ]
    )
    in_file = Window.partitionBy(_URI).orderBy(BLOCK, RANK)
    lines = _load(spark, "text", files, None, {}).withColumn(LINE, F.row_number().over(in_file))
    named = lines.select(numbers[F.col(_URI)].alias(FILE), _text(options).alias(RAW), LINE)
    return named.withColumn(COPY, F.row_number().over(Window.partitionBy(FILE, RAW).orderBy(LINE)))


def _text(options: Mapping[str, str]) -> Column:
    return (
        F.col(_VALUE)
        if is_utf8(options)
        else F.decode(F.col(_VALUE).cast("binary"), options["encoding"])
    )


def _csv(
    spark: SparkSession,
    form: Form,
    files: Sequence[Readable],
    record: Record,
    options: Mapping[str, str],
) -> DataFrame:
    """Line by line, so that a bad row is known by its line; by Spark's reader of whole files where cells hold line breaks."""
    reading = read_options(options)
    if is_true(options, "multiline"):
        schema = StructType([StructField(name, StringType()) for name in (*form.names, CORRUPT)])
        parsed = F.struct(*[F.col(quoted(name)) for name in schema.names])
        rows = _load(spark, "csv", files, schema, reading)
        return rows.select(
            parsed.alias(_PARSED),
            F.coalesce(CORRUPT, F.to_json(parsed)).alias(_TEXT),
            _false(HEADER),
            _URI,
            BLOCK,
            RANK,
        )
    lines = _load(spark, "text", files, None, {})
    text = _text(options)
    # One more field is put behind the line: a quote that is not closed swallows it, and then there is one too few
    schema = StructType([StructField(name, StringType()) for name in (*form.names, _END, CORRUPT)])
    cells = F.from_csv(F.concat(text, F.lit(f"{separator(options)}1")), _ddl(schema), reading)
    header = _false(HEADER) if form.header is None else (text == F.lit(form.header)).alias(HEADER)
    encoded = F.is_valid_utf8(_VALUE) if is_utf8(options) else F.lit(True)
    rows = lines.where(F.trim(text) != "").select(
        cells.alias(_PARSED), text.alias(_TEXT), header, _URI, BLOCK, RANK, encoded.alias("utf8")
    )
    unclosed = open_quote(options)
    is_unclosed = F.lit(False) if unclosed is None else F.col(_TEXT).rlike(unclosed)
    ragged = F.when(is_unclosed, F.lit(UNCLOSED)).otherwise(F.lit(_RAGGED))
    broken = F.when(~F.col("utf8"), F.lit(_ENCODED)).when(
        F.col(_PARSED).getField(CORRUPT).isNotNull(), ragged
    )
    return rows.withColumn(BAD, broken).drop("utf8")


def _json(
    spark: SparkSession,
    form: Form,
    files: Sequence[Readable],
    record: Record,
    options: Mapping[str, str],
) -> DataFrame:
    fields = [field for field in record.given if field.name not in form.folders]
    schema = StructType([*fields, StructField(CORRUPT, StringType())])
    parsed = F.from_json(
        _VALUE, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    )
    unknown = F.array_except(
        F.json_object_keys(_TEXT), F.array(*[F.lit(field.name) for field in fields])
    )
    lines = _load(spark, "text", files, None, {}).where(F.trim(_VALUE) != "")
    rows = lines.select(
        parsed.alias(_PARSED), F.col(_VALUE).alias(_TEXT), _false(HEADER), _URI, BLOCK, RANK
    )
    is_broken = (
        F.col(_PARSED).isNull()
        | F.col(_PARSED).getField(CORRUPT).isNotNull()
        | F.json_object_keys(_TEXT).isNull()
    )
    broken = F.when(~F.is_valid_utf8(_TEXT), F.lit("the line is not UTF-8, which JSON has to be"))
    broken = broken.when(is_broken, F.lit("the line is no JSON object with the fields' types"))
    broken = broken.when(several_values(F.col(_TEXT)), F.lit(MORE_VALUES))
    broken = broken.when(key_twice(F.col(_TEXT)), F.lit("a key is there twice"))
    broken = broken.when(
        F.size(unknown) > 0, F.concat(F.lit("unknown field "), F.array_join(unknown, ", "))
    )
    nested = [field for field in fields if is_nested(field.dataType)]
    within = misread(F.col(_TEXT), nested, is_whole=False)
    return rows.withColumn(BAD, F.coalesce(broken, *rounded(F.col(_TEXT), fields), *within))


def _columnar(
    spark: SparkSession,
    form: Form,
    files: Sequence[Readable],
    record: Record,
    options: Mapping[str, str],
) -> DataFrame:
    rows = _load(
        spark, form.format, files, None, {} if form.format == "avro" else {"mergeSchema": "true"}
    )
    names = [name for name in rows.columns if name not in (_URI, BLOCK, RANK)]
    given = [name for name in record.given.names if name not in form.folders]
    needed = (
        record.ids if form.is_deletes else [name for name in given if name in record.fields.names]
    )
    problems = unknown_names(names, given) + [
        f"field {name!r} is missing" for name in needed if name in given and name not in names
    ]
    if problems:
        raise InvalidInputError(
            f"{files[0].increment.source} and its like: {'; '.join(problems)}; records have {', '.join(given)}"
        )
    differing = [
        other_members(rows.schema[name].dataType, record.given[name].dataType, name)
        for name in names
    ]
    if any(differing):
        said = "; ".join(filter(None, differing))
        raise InvalidInputError(
            f"{files[0].increment.source} and its like: {said}, as records have it. Deliver the "
            "members with the names and the order that records have. Nothing was changed"
        )
    parsed = F.struct(*[F.col(quoted(name)) for name in names])
    return rows.select(
        parsed.alias(_PARSED), F.to_json(parsed).alias(_TEXT), _false(HEADER), _URI, BLOCK, RANK
    )


def _rows(rows: DataFrame, form: Form, job: Mutate, record: Record) -> DataFrame:
    """From what was parsed to the record's fields."""
    parsed = rows.schema[_PARSED].dataType
    assert isinstance(parsed, StructType)
    types: dict[str, DataType] = {field.name: field.dataType for field in parsed}
    values, faults = list[Column](), list[Column]()
    for field in record.given:
        if field.name in types:
            value, fault = fitted(F.col(_PARSED).getField(field.name), types[field.name], field)
        elif field.name in form.folders:
            value, fault = fitted(F.col(_FOLDERS).getItem(field.name), StringType(), field)
        else:
            value, fault = F.lit(None).cast(field.dataType), None
        values.append(value.alias(field.name))
        faults += [] if fault is None else [fault]
    noted = [F.col(BAD)] if BAD in rows.columns else [F.lit(None).cast("string").alias(BAD)]
    kept = (_TEXT, HEADER, FILE, _SUFFIX, BLOCK, RANK)
    fields = rows.select(*values, *kept, *noted, F.coalesce(*faults, F.lit(None)).alias(_FAULT))
    given = {*types, *form.folders}
    has_order = record.order is not None and record.order in given
    has_op = _has_op(form, record, is_given=record.op in given)
    return _marked(fields, form, job, record, has_op, has_order=has_order)


def _has_op(form: Form, record: Record, *, is_given: bool) -> Column:
    """Return whether a row has the operation; true where none is needed."""
    if form.is_deletes or record.op is None or record.op in record.fields.names:
        return F.lit(True)
    if form.format == "json" and record.op not in form.folders:
        has_key = F.array_contains(F.json_object_keys(_TEXT), record.op)
        return F.coalesce(has_key, F.lit(False))
    return F.lit(is_given)


def _marked(
    fields: DataFrame, form: Form, job: Mutate, record: Record, has_op: Column, *, has_order: bool
) -> DataFrame:
    deleted = F.lit(form.is_deletes)
    if record.op is not None and not form.is_deletes:
        deleted = F.coalesce(
            F.col(quoted(record.op)).cast("string") == F.lit(job.deleted_op), F.lit(False)
        )
    faults = [F.col(BAD), F.col(_FAULT), *(_missing(name) for name in record.ids)]
    columns = [
        F.struct(*[F.col(quoted(name)) for name in record.fields.names]).alias(ROW),
        deleted.alias(DELETED),
    ]
    columns += [F.col(quoted(name)).alias(key(number)) for number, name in enumerate(record.ids)]
    untimed = F.lit(not has_order and record.order is not None)
    if record.order is not None:
        order = (
            record.order_of(record.order)
            if has_order
            else F.lit(None).cast(_order_type(fields, record))
        )
        columns.append(order.alias(ORDER))
        if has_order:
            if (
                form.is_deletes and form.format == "json"
            ):  # each line says itself which fields it has
                untimed = ~F.coalesce(
                    F.array_contains(F.json_object_keys(_TEXT), record.order), F.lit(True)
                )
            what = f"field {record.order!r}, the order, is"
            reason = F.when(_is_blank(record.order), f"{what} missing").otherwise(
                f"{what} not a valid {_kind_text(record)}"
            )
            is_nan = (
                F.isnan(order)
                if isinstance(record.given[record.order].dataType, DoubleType | FloatType)
                else F.lit(False)
            )
            faults.append(F.when((order.isNull() | is_nan) & ~untimed, reason))
    if record.order is None:
        by_suffix = job.order == BY_SUFFIX
        columns.append((F.col(_SUFFIX) if by_suffix else F.lit(0).cast("long")).alias(ORDER))
    if record.by_line and (form.format != "csv" or is_true(increment_options(job), "multiline")):
        faults += _line_breaks(record)
    faults += record.unwritable()
    bad = F.when(~F.col(HEADER), F.coalesce(*faults))
    columns += [
        untimed.alias(UNTIMED),
        has_op.alias(HAS_OP),
        *map(F.col, (FILE, BLOCK, RANK, HEADER)),
    ]
    return fields.select(*columns, bad.alias(BAD), F.when(bad.isNotNull(), F.col(_TEXT)).alias(RAW))


def _line_breaks(record: Record) -> list[Column]:
    """Which a CSV file that is read line by line cannot hold."""
    texts = [field.name for field in record.fields if isinstance(field.dataType, StringType)]
    return [
        F.when(F.col(quoted(name)).rlike("[\r\n]"), F.lit(f"field {name!r} holds {_BREAK}"))
        for name in texts
    ]


def _missing(name: str) -> Column:
    return F.when(_is_blank(name), F.lit(f"the id {name!r} is missing"))


def _is_blank(name: str) -> Column:
    value = F.col(quoted(name))
    return value.isNull() | (F.trim(value.cast("string")) == "")


def _order_type(fields: DataFrame, record: Record) -> DataType:
    assert record.order is not None
    return fields.select(record.order_of(record.order)).schema[0].dataType


def _kind_text(record: Record) -> str:
    assert record.order is not None
    kinds = {
        "numeric": "number with up to 28 digits before the point and 10 after it (of dates and times: order_type='timestamp')",
        "text": "text",
        "timestamp": f"TIMESTAMP, {TIME_FORMS}",
    }
    kind = record.given[record.order].dataType
    return kinds[record.order_type] if isinstance(kind, StringType) else spark_type_name(kind)


def _false(name: str) -> Column:
    return F.lit(False).alias(name)


def _ddl(schema: StructType) -> str:
    return ", ".join(f"{quoted(field.name)} STRING" for field in schema)
