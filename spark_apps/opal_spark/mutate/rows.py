"""The rows of increments, in one form for all formats of files.

A row has the record, its id, whether it deletes, its order, and its position in the files. A bad
row also has the reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, StringType, StructField, StructType

from opal_lake.errors import InvalidInputError
from opal_lake.operations.mutate import Mutate
from opal_lake.source import BY_SUFFIX
from opal_lake.storage.spark_path import hadoop_uri, spark_paths
from opal_spark.engine.columns import columns_named, quoted, spark_type_name
from opal_spark.engine.session import STRICT, few_listing_tasks
from opal_spark.mutate.csv_text import CORRUPT, increment_options, is_utf8, read_options
from opal_spark.mutate.groups import Form, Readable
from opal_spark.mutate.record import (
    TIME_FORMS,
    Record,
    fitted,
    is_nested,
    key_twice,
    misread_faults,
    missing_names,
    other_members,
    repeated_names,
    rounding_faults,
    several_values,
    unknown_names,
)
from opal_spark.sources.marks import plain_uri, plain_uris
from opal_spark.sources.text.csv_lines import is_true, separator
from opal_spark.sources.text.csv_quotes import UNCLOSED, open_quote
from opal_spark.sources.text.json_files import MORE_VALUES

# Columns of the rows; the prefix distinguishes them from the fields of records
ROW, DELETED, ORDER, UNTIMED = "_opal_row", "_opal_deleted", "_opal_ordered", "_opal_untimed"
FILE, BLOCK, RANK, LINE, COPY = (
    "_opal_file",
    "_opal_block",
    "_opal_rank",
    "_opal_line",
    "_opal_copy",
)
BAD, RAW, HEADER, HAS_OP = "_opal_bad", "_opal_raw", "_opal_header", "_opal_has_op"
_URI, _TEXT, _PARSED, _END = "_opal_uri", "_opal_text", "_opal_parsed", "_opal_end"
_FAULT, _SUFFIX, _FOLDERS = "_opal_fault", "_opal_suffix", "_opal_folders"
_VALUE = "value"  # the column of Spark's source of text
_RAGGED = (
    "the row has more or fewer fields than the record "
    "(where fields hold line breaks, set multiLine=true)"
)
_BREAK = "a line break, which the master's CSV can hold only with the option multiLine=true"
_MISFIT = "the line is not a JSON object with the fields' types"
_ENCODED = "the line is not UTF-8; give the encoding, such as ISO-8859-1"


def key(number: int) -> str:
    """Return the name of the column of an id's n-th field, from 0."""
    return f"_opal_id_{number}"


def keys(record: Record) -> list[str]:
    """Return the names of the columns of an id's fields."""
    return [key(number) for number in range(len(record.ids))]


def id_columns(record: Record) -> list[Column]:
    """Return the fields of an id as columns with the names of `keys`."""
    fields = columns_named(record.ids)
    return [field.alias(name) for field, name in zip(fields, keys(record), strict=True)]


def read_increments(
    spark: SparkSession,
    forms: Mapping[Form, Sequence[Readable]],
    job: Mutate,
    record: Record,
    options: Mapping[str, str],
) -> DataFrame:
    """Return the rows of all increments.

    A bad row has the reason, and the text of the row.
    """
    parts = []
    for form, files in forms.items():
        read = {"csv": _csv, "json": _json}.get(form.format, _columnar)
        parsed = read(spark, form, files, record, options)
        with_files = _with_files(spark, parsed, files)
        parts.append(_rows(with_files, form, job, record))
    return reduce(DataFrame.unionByName, parts)


def _with_files(spark: SparkSession, rows: DataFrame, files: Sequence[Readable]) -> DataFrame:
    """Add the number, the suffix and the folders of each row's file."""
    uris = [plain_uri(hadoop_uri(file.storage, file.path)) for file in files]
    numbers = [file.number for file in files]
    suffixes = [file.increment.suffix for file in files]
    folders = [list(file.increment.folders.items()) for file in files]
    table = pa.table(
        {
            _URI: uris,
            FILE: pa.array(numbers, pa.int32()),
            _SUFFIX: pa.array(suffixes, pa.int64()),
            _FOLDERS: pa.array(folders, pa.map_(pa.string(), pa.string())),
        }
    )
    with_file = rows.join(F.broadcast(spark.createDataFrame(table)), _URI, "left")
    # Without this error, a row whose file is not in the table would be lost silently
    message = F.concat(F.lit("no increment is called "), F.col(_URI))
    unknown_file = F.raise_error(message).cast("int")
    return with_file.withColumn(FILE, F.coalesce(FILE, unknown_file))


def _load(
    spark: SparkSession,
    kind: str,
    files: Sequence[Readable],
    schema: StructType | None,
    options: Mapping[str, str],
) -> DataFrame:
    """Read files, and add the file of each row and the row's position in the file.

    The position is BLOCK, the start of the block that a task reads, and RANK, which rises within
    a block.
    """
    paths: list[str] = []
    for file in files:
        paths += spark_paths(file.storage, [file.path])
    reading = {**options, **STRICT, "recursiveFileLookup": "true"}
    reader = spark.read.format(kind).options(**reading)
    if schema is not None:
        reader = reader.schema(schema)
    with few_listing_tasks(spark), repeated_names(_first_of(files)):
        rows = reader.load(paths)
    metadata = rows.metadataColumn("_metadata")
    return rows.select(
        *columns_named(rows.columns),
        plain_uris(metadata.getField("file_path")).alias(_URI),
        metadata.getField("file_block_start").alias(BLOCK),
        F.monotonically_increasing_id().alias(RANK),
    )


def _first_of(files: Sequence[Readable]) -> str:
    """Return the text that errors use for files that are read together."""
    return f"{files[0].increment.source} and files of its form"


def numbered_lines(
    spark: SparkSession, files: Sequence[Readable], options: Mapping[str, str]
) -> DataFrame:
    """Return the lines of text files with the columns FILE, RAW, LINE and COPY.

    LINE is the line's number in the file, from 1. COPY numbers the equal lines of a file, from 1.
    """
    uris_and_numbers = []
    for file in files:
        uri = plain_uri(hadoop_uri(file.storage, file.path))
        uris_and_numbers += [F.lit(uri), F.lit(file.number)]
    numbers = F.create_map(*uris_and_numbers)
    in_file = Window.partitionBy(_URI).orderBy(BLOCK, RANK)
    lines = _load(spark, "text", files, None, {}).withColumn(LINE, F.row_number().over(in_file))
    named = lines.select(numbers[F.col(_URI)].alias(FILE), _text(options).alias(RAW), LINE)
    equal_lines = Window.partitionBy(FILE, RAW).orderBy(LINE)
    return named.withColumn(COPY, F.row_number().over(equal_lines))


def _text(options: Mapping[str, str]) -> Column:
    if is_utf8(options):
        return F.col(_VALUE)
    return F.decode(F.col(_VALUE).cast("binary"), options["encoding"])


def _csv(
    spark: SparkSession,
    form: Form,
    files: Sequence[Readable],
    record: Record,
    options: Mapping[str, str],
) -> DataFrame:
    """Read CSV line by line, so that the text of a bad row is its line.

    Files whose cells may hold line breaks are read by Spark's reader of CSV instead.
    """
    reading = read_options(options)
    if is_true(options, "multiline"):
        schema = _texts((*form.names, CORRUPT))
        parsed = F.struct(*columns_named(schema.names))
        text = F.coalesce(CORRUPT, F.to_json(parsed))
        rows = _load(spark, "csv", files, schema, reading)
        return rows.select(
            parsed.alias(_PARSED), text.alias(_TEXT), _false(HEADER), _URI, BLOCK, RANK
        )
    text = _text(options)
    # A last field is added to each line: after an open quote it is missing from the parsed cells
    line = F.concat(text, F.lit(f"{separator(options)}1"))
    cells = F.from_csv(line, _ddl(_texts((*form.names, _END, CORRUPT))), reading)
    header = F.lit(False)
    if form.header is not None:
        header = text == F.lit(form.header)
    is_valid = F.lit(True)
    if is_utf8(options):
        is_valid = F.is_valid_utf8(_VALUE)
    rows = _load(spark, "text", files, None, {}).where(F.trim(text) != "")
    rows = rows.select(
        cells.alias(_PARSED),
        text.alias(_TEXT),
        header.alias(HEADER),
        _URI,
        BLOCK,
        RANK,
        is_valid.alias("utf8"),
    )
    unclosed = open_quote(options)
    is_unclosed = F.lit(False)
    if unclosed is not None:
        is_unclosed = F.col(_TEXT).rlike(unclosed)
    ragged = F.when(is_unclosed, F.lit(UNCLOSED)).otherwise(F.lit(_RAGGED))
    is_ragged = F.col(_PARSED).getField(CORRUPT).isNotNull()
    broken = F.when(~F.col("utf8"), F.lit(_ENCODED)).when(is_ragged, ragged)
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
    reading = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed = F.from_json(_VALUE, schema, reading)
    lines = _load(spark, "text", files, None, {}).where(F.trim(_VALUE) != "")
    rows = lines.select(
        parsed.alias(_PARSED), F.col(_VALUE).alias(_TEXT), _false(HEADER), _URI, BLOCK, RANK
    )
    text = F.col(_TEXT)
    names = F.json_object_keys(_TEXT)
    is_misfit = F.col(_PARSED).isNull() | F.col(_PARSED).getField(CORRUPT).isNotNull()
    unknown = F.array_except(names, F.array(*[F.lit(field.name) for field in fields]))
    unknown_text = F.concat(F.lit("unknown field "), F.array_join(unknown, ", "))
    broken = (
        F.when(~F.is_valid_utf8(_TEXT), F.lit("the line is not UTF-8, which JSON has to be"))
        .when(is_misfit | names.isNull(), F.lit(_MISFIT))
        .when(several_values(text), F.lit(MORE_VALUES))
        .when(key_twice(text), F.lit("a key occurs twice"))
        .when(F.size(unknown) > 0, unknown_text)
    )
    nested = [field for field in fields if is_nested(field.dataType)]
    faults = rounding_faults(text, fields)
    faults += misread_faults(text, nested, is_whole=False)
    return rows.withColumn(BAD, F.coalesce(broken, *faults))


def _columnar(
    spark: SparkSession,
    form: Form,
    files: Sequence[Readable],
    record: Record,
    options: Mapping[str, str],
) -> DataFrame:
    reading = {} if form.format == "avro" else {"mergeSchema": "true"}
    rows = _load(spark, form.format, files, None, reading)
    names = [name for name in rows.columns if name not in (_URI, BLOCK, RANK)]
    given = [name for name in record.given.names if name not in form.folders]
    needed = record.ids if form.is_deletes else record.fields.names
    # Fields that folders name are not in the files
    in_files = [name for name in needed if name in given]
    problems = unknown_names(names, given)
    problems += missing_names(in_files, names)
    if problems:
        raise InvalidInputError(
            f"{_first_of(files)}: {'; '.join(problems)}. Records have the fields "
            f"{', '.join(given)}: deliver these. Nothing was changed"
        )
    differences = []
    for name in names:
        kind, expected = rows.schema[name].dataType, record.given[name].dataType
        difference = other_members(kind, expected, name)
        if difference is not None:
            differences.append(difference)
    if differences:
        raise InvalidInputError(
            f"{_first_of(files)}: {'; '.join(differences)}, which the master's records have. "
            "Deliver the fields with these names, in this order. Nothing was changed"
        )
    parsed = F.struct(*columns_named(names))
    return rows.select(
        parsed.alias(_PARSED), F.to_json(parsed).alias(_TEXT), _false(HEADER), _URI, BLOCK, RANK
    )


def _rows(rows: DataFrame, form: Form, job: Mutate, record: Record) -> DataFrame:
    """Return parsed rows in the form of this module: see its docstring."""
    parsed = rows.schema[_PARSED].dataType
    assert isinstance(parsed, StructType)
    types: dict[str, DataType] = {field.name: field.dataType for field in parsed}
    values: list[Column] = []
    faults: list[Column] = []
    for field in record.given:
        if field.name in types:
            value, fault = fitted(F.col(_PARSED).getField(field.name), types[field.name], field)
        elif field.name in form.folders:
            value, fault = fitted(F.col(_FOLDERS).getItem(field.name), StringType(), field)
        else:
            value, fault = F.lit(None).cast(field.dataType), None
        values.append(value.alias(field.name))
        if fault is not None:
            faults.append(fault)
    if BAD not in rows.columns:
        rows = rows.withColumn(BAD, F.lit(None).cast("string"))
    fault_of_row = F.coalesce(*faults, F.lit(None)).alias(_FAULT)
    about_row = (_TEXT, HEADER, FILE, _SUFFIX, BLOCK, RANK, BAD)
    fields = rows.select(*values, *about_row, fault_of_row)
    given = {*types, *form.folders}
    has_order = record.order is not None and record.order in given
    has_op = _has_op(form, record, is_given=record.op in given)
    return _marked(fields, form, job, record, has_op, has_order=has_order)


def _has_op(form: Form, record: Record, *, is_given: bool) -> Column:
    """Return whether a row has the operation's field; true if rows need none."""
    if form.is_deletes or record.op is None or record.op in record.fields.names:
        return F.lit(True)
    if form.format == "json" and record.op not in form.folders:
        has_key = F.array_contains(F.json_object_keys(_TEXT), record.op)
        return F.coalesce(has_key, F.lit(False))
    return F.lit(is_given)


def _marked(
    fields: DataFrame, form: Form, job: Mutate, record: Record, has_op: Column, *, has_order: bool
) -> DataFrame:
    """Add to the rows whether they delete, their order, and why they are bad."""
    deleted = F.lit(form.is_deletes)
    if record.op is not None and not form.is_deletes:
        is_delete = F.col(quoted(record.op)).cast("string") == F.lit(job.deleted_op)
        deleted = F.coalesce(is_delete, F.lit(False))
    missing_ids = [_missing(name) for name in record.ids]
    faults = [F.col(BAD), F.col(_FAULT), *missing_ids]
    # An untimed row has no order, and a row without an order counts as the latest
    untimed = F.lit(False)
    if record.order is None and job.order == BY_SUFFIX:
        order = F.col(_SUFFIX)
    elif record.order is None:
        order = F.lit(0).cast("long")
    elif has_order:
        order = record.order_of(record.order)
        if form.is_deletes and form.format == "json":
            # Each line of JSON may have other fields
            has_key = F.array_contains(F.json_object_keys(_TEXT), record.order)
            untimed = ~F.coalesce(has_key, F.lit(True))
        faults.append(_order_fault(record, order, untimed))
    else:
        order = F.lit(None).cast(_order_type(fields, record))
        untimed = F.lit(True)
    may_hold_breaks = form.format != "csv" or is_true(increment_options(job), "multiline")
    if record.by_line and may_hold_breaks:
        faults += _line_breaks(record)
    faults += record.unwritable_faults()
    bad = F.when(~F.col(HEADER), F.coalesce(*faults))
    row = F.struct(*columns_named(record.fields.names))
    return fields.select(
        row.alias(ROW),
        deleted.alias(DELETED),
        *id_columns(record),
        order.alias(ORDER),
        untimed.alias(UNTIMED),
        has_op.alias(HAS_OP),
        FILE,
        BLOCK,
        RANK,
        HEADER,
        bad.alias(BAD),
        F.when(bad.isNotNull(), F.col(_TEXT)).alias(RAW),
    )


def _order_fault(record: Record, order: Column, untimed: Column) -> Column:
    """Return the reason for a row whose order is missing or is not a valid value."""
    assert record.order is not None
    field_is = f"field {record.order!r}, the order, is"
    is_invalid = order.isNull()
    if isinstance(record.given[record.order].dataType, DoubleType | FloatType):
        is_invalid |= F.isnan(order)
    missing = F.when(_is_blank(record.order), f"{field_is} missing")
    reason = missing.otherwise(f"{field_is} not a valid {_kind_text(record)}")
    return F.when(is_invalid & ~untimed, reason)


def _line_breaks(record: Record) -> list[Column]:
    """Return reasons for texts with line breaks, for a CSV master read by line."""
    faults = []
    for field in record.fields:
        if isinstance(field.dataType, StringType):
            has_break = F.col(quoted(field.name)).rlike("[\r\n]")
            faults.append(F.when(has_break, F.lit(f"field {field.name!r} holds {_BREAK}")))
    return faults


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
    kind = record.given[record.order].dataType
    if not isinstance(kind, StringType):
        return spark_type_name(kind)
    kinds = {
        "numeric": (
            "number with up to 28 digits before the point and 10 after it "
            "(for dates and times: order_type='timestamp')"
        ),
        "text": "text",
        "timestamp": f"TIMESTAMP, {TIME_FORMS}",
    }
    return kinds[record.order_type]


def _false(name: str) -> Column:
    return F.lit(False).alias(name)


def _texts(names: Iterable[str]) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def _ddl(schema: StructType) -> str:
    return ", ".join(f"{quoted(field.name)} STRING" for field in schema)
