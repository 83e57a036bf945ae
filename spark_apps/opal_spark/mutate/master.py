"""The master as a DataFrame: the files of a local folder, or the files in a list on S3."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from opal_folder.master_folder import MasterFile, MasterForm
from opal_lake.errors import InvalidInputError, NoRowsError
from opal_lake.source import format_of
from opal_lake.storage import Storage, open_storage, options_for
from opal_lake.storage.spark_path import hadoop_uri, spark_paths
from opal_spark.engine.columns import columns_named, quoted
from opal_spark.engine.session import STRICT, few_listing_tasks
from opal_spark.mutate.avro_files import schema_text
from opal_spark.mutate.csv_text import CORRUPT, header_cells, read_options
from opal_spark.mutate.groups import AT_ONCE
from opal_spark.mutate.record import other_members, repeated_names, unknown_names
from opal_spark.sources.text.csv_lines import first_line, is_true

# The column with the file of a row
PLACE = "_opal_place"


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterFiles:
    """The files of a master, and how they are read.

    `options` are the store's options, `csv` the options of Spark's reader. `heads` remembers the
    first line, or for Avro the schema, of each file that was read, by root and path.
    """

    files: Sequence[MasterFile]
    format: str
    options: Mapping[str, str]
    csv: Mapping[str, str]
    heads: dict[tuple[str, str], str | None] = field(default_factory=dict)

    @property
    def partition_by(self) -> list[str]:
        """The fields that the names of folders have, such as `day` of `day=2026-11-01`."""
        fields_of_files = {tuple(file.values()) for file in self.files}
        if len(fields_of_files) > 1:
            fewest, more, *_ = sorted(fields_of_files, key=len)
            raise InvalidInputError(
                f"the master has files in folders of {list(more)} and of {list(fewest)}: "
                "move the files into folders of the same fields"
            )
        return list(next(iter(fields_of_files), ()))


def format_named(names: Sequence[str], given: str | None, what: str) -> str:
    """Return the given format, or the one that the files' endings name.

    A name without an ending is CSV, as Hadoop's part files are. Errors use `what` for the files.
    """
    if given is not None:
        return given
    formats = {format_of(name) or "csv" for name in names}
    if len(formats) > 1:
        raise InvalidInputError(
            f"the {what} are files of the formats {', '.join(sorted(formats))}; "
            "give one format at a time"
        )
    return formats.pop()


def found_schema(spark: SparkSession, master: MasterFiles) -> StructType:
    """Return the fields of the master's files, and then the fields of its folders.

    Fields of folders and of CSV are texts: only a given schema knows their types.
    """
    folders = [StructField(name, StringType()) for name in master.partition_by]
    if master.format == "csv":
        fields = [StructField(name, StringType()) for name in _csv_names(master)]
    else:
        schema = _load(spark, master, None).schema
        not_in_files = (*master.partition_by, CORRUPT)
        fields = [field for field in schema if field.name not in not_in_files]
    return StructType([*fields, *folders])


def known_schema(spark: SparkSession, master: MasterFiles, form: MasterForm | None) -> StructType:
    """Return a master's fields; `form` is the record of the last run, or None.

    The types of CSV and JSON, and the fields of a master without files, come from `form`. Fields
    that were added to the files since that run are returned too, so no field is lost silently.
    """
    if form is None:
        return found_schema(spark, master)
    recorded = StructType.fromJson(dict(form.schema))
    if not master.files:
        return recorded
    if form.format not in ("csv", "json"):
        return found_schema(spark, master)
    if form.format == "csv" and not is_true(master.csv, "header"):
        return recorded
    in_files = found_schema(spark, master)
    if form.format == "json":
        return StructType(_with_new_members(recorded, in_files))
    known = {name.casefold() for name in recorded.names}
    added = [field for field in in_files if field.name.casefold() not in known]
    return StructType([*recorded.fields, *added])


def _with_new_members(recorded: StructType, in_files: StructType) -> list[StructField]:
    """Return the recorded fields with the new fields and members of JSON files."""
    types_in_files = {field.name: field.dataType for field in in_files}
    fields = []
    for column in recorded:
        type_in_files = types_in_files.get(column.name, column.dataType)
        fields.append(StructField(column.name, _extended_type(column.dataType, type_in_files)))
    fields += [column for column in in_files if column.name not in recorded.names]
    return fields


def _extended_type(recorded: DataType, in_files: DataType) -> DataType:
    """Return a recorded type with the new members of the type in files."""
    match recorded, in_files:
        case StructType(), StructType():
            return StructType(_with_new_members(recorded, in_files))
        case ArrayType(), ArrayType():
            return ArrayType(_extended_type(recorded.elementType, in_files.elementType))
    return recorded


def naming_file(master: MasterFiles) -> tuple[str, str] | None:
    """Return the first CSV file that has a line, and its first line, or None.

    The line gives the names of the fields, or their number.
    """
    for storage, paths in by_root(master):
        for path in paths:
            if (line := first_line(storage, path, master.csv)) is not None:
                return f"{storage.uri}/{path}", line
    return None


def _csv_names(master: MasterFiles) -> list[str]:
    file_and_line = naming_file(master)
    if file_and_line is None:
        return []
    _, line = file_and_line
    cells = header_cells(line, master.csv)
    if is_true(master.csv, "header"):
        return cells
    # As Spark's reader of CSV names them
    return [f"_c{number}" for number in range(len(cells))]


def read_files(spark: SparkSession, master: MasterFiles, schema: StructType) -> DataFrame:
    """Return the rows of the master with the fields of a schema.

    For CSV and JSON, CORRUPT has the text of a row that does not fit the schema, and PLACE its
    file.
    """
    if master.format in ("csv", "json"):
        schema = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    return _load(spark, master, schema)


def by_root(master: MasterFiles) -> Iterator[tuple[Storage, list[str]]]:
    """Yield each root of the master's files as a storage, with its files' paths."""
    paths: dict[str, list[str]] = {}
    for file in master.files:
        paths.setdefault(file.root, []).append(file.path)
    for root, root_paths in paths.items():
        yield open_storage(root, options_for(root, master.options)), root_paths


def _load(spark: SparkSession, master: MasterFiles, schema: StructType | None) -> DataFrame:
    has_headers = master.format == "csv" and is_true(master.csv, "header")
    parts = []
    for storage, paths in by_root(master):
        if master.format == "avro":
            groups = _by_head(master, storage, paths).values()
            parts += [_load_avro(spark, master, storage, group, schema) for group in groups]
        elif has_headers and schema is not None:
            for line, group in _by_head(master, storage, paths).items():
                in_header_order = _in_order(master, storage, group[0], line, schema)
                parts.append(_load_root(spark, master, storage, group, in_header_order))
        else:
            parts.append(_load_root(spark, master, storage, paths, schema))
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part, allowMissingColumns=True)
    return rows


def _by_head(
    master: MasterFiles, storage: Storage, paths: Sequence[str]
) -> dict[str | None, list[str]]:
    """Return the paths of files by their header, or for Avro by their schema.

    Spark applies the first file's header or schema to all files that it reads together.
    """

    def read_head(path: str) -> str | None:
        key = (storage.uri, path)
        if key in master.heads:
            return master.heads[key]
        if master.format == "avro":
            head: str | None = schema_text(storage, path)
        else:
            head = first_line(storage, path, master.csv)
        master.heads[key] = head
        return head

    with ThreadPoolExecutor(AT_ONCE) as pool:
        heads = list(pool.map(read_head, paths))
    by_head: dict[str | None, list[str]] = {}
    for head, path in zip(heads, paths, strict=True):
        by_head.setdefault(head, []).append(path)
    return by_head


def _in_order(
    master: MasterFiles, storage: Storage, path: str, line: str | None, schema: StructType
) -> StructType:
    """Return the schema with its fields in the order of a CSV file's header.

    Raises InvalidInputError if the header does not name the fields of the schema.
    """
    if line is None:
        return schema
    names = header_cells(line, master.csv)
    given = [name.casefold() for name in names]
    not_in_file = [field for field in schema if field.name in (*master.partition_by, CORRUPT)]
    in_file = [field for field in schema if field not in not_in_file]
    known = {field.name.casefold(): field for field in in_file}
    known_names = [field.name for field in in_file]
    unknown = [name for name in names if name.casefold() not in known]
    repeated = [name for name in names if given.count(name.casefold()) > 1]
    missing = [field.name for name, field in known.items() if name not in given]
    problems = [f"field {name!r} occurs twice" for name in repeated]
    problems += unknown_names(unknown, known_names)
    problems += [f"field {name!r} is missing" for name in missing]
    if problems:
        raise InvalidInputError(
            f"{storage.uri}/{path}, line 1: {'; '.join(problems)}. The header is {line}; "
            f"the master's records have {','.join(known_names)}. "
            "Correct the file, or remove it from the master"
        )
    in_header_order = [known[name] for name in given]
    return StructType([*in_header_order, *not_in_file])


def _load_avro(
    spark: SparkSession,
    master: MasterFiles,
    storage: Storage,
    paths: Sequence[str],
    schema: StructType | None,
) -> DataFrame:
    """Return the rows of Avro files of one schema, with the master's fields and types.

    Spark's reader does not convert Avro's types, so the values are cast here.
    """
    first = _load_root(spark, master, storage, paths[:1], None)
    own = [field for field in first.schema if field.name not in master.partition_by]
    if schema is None:
        return first.select(*columns_named(field.name for field in own))
    folders = [field for field in schema if field.name in master.partition_by]
    rows = _load_root(spark, master, storage, paths, StructType([*own, *folders]))
    _refuse_other_members(f"{storage.uri}/{paths[0]}", own, schema)
    # `rows.columns` asks the JVM for all names at each call
    loaded = frozenset(rows.columns)
    present, absent = [], []
    for column in schema:
        if column.name in loaded:
            value = F.col(quoted(column.name)).cast(column.dataType)
            present.append(value.alias(column.name))
        else:
            absent.append(F.lit(None).cast(column.dataType).alias(column.name))
    return rows.select(*present, *absent)


def _refuse_other_members(file: str, own: Sequence[StructField], schema: StructType) -> None:
    """Raise InvalidInputError if a column of a file has other nested fields."""
    expected = {field.name: field.dataType for field in schema}
    for column in own:
        kind = expected.get(column.name, column.dataType)
        differing = other_members(column.dataType, kind, column.name)
        if differing is not None:
            raise InvalidInputError(
                f"{file}: {differing}, which the master's records have. "
                "Write the master's files with one schema"
            )


def _load_root(
    spark: SparkSession,
    master: MasterFiles,
    storage: Storage,
    paths: Sequence[str],
    schema: StructType | None,
) -> DataFrame:
    options = {**STRICT, "basePath": hadoop_uri(storage)}
    if master.format == "csv":
        options |= read_options(master.csv)
    elif master.format == "json":
        options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    elif master.format != "avro":
        options["mergeSchema"] = "true"
    reader = spark.read.format(master.format).options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    try:
        with few_listing_tasks(spark), repeated_names(f"the files in {storage.uri}"):
            rows = reader.load(spark_paths(storage, paths))
    except AnalysisException as error:
        if error.getCondition() in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise NoRowsError(f"{storage.uri} has no master to read: correct the path") from error
        raise
    if schema is None or CORRUPT not in schema.names:
        return rows
    file = rows.metadataColumn("_metadata").getField("file_path").alias(PLACE)
    return rows.select(*columns_named(rows.columns), file)
