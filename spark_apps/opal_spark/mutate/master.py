"""The master as a DataFrame: files of one folder, or of those that a run in S3 listed."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from opal_folder.place import MasterFile, MasterForm
from opal_lake.errors import InvalidInputError, NoRowsError
from opal_lake.source import format_of
from opal_lake.storage import Storage, open_storage, options_for
from opal_lake.storage.spark_path import hadoop_uri, spark_paths
from opal_spark.engine.columns import quoted
from opal_spark.engine.session import STRICT, few_listing_tasks
from opal_spark.mutate.avro_files import schema_text
from opal_spark.mutate.csv_text import CORRUPT, header_cells, read_options
from opal_spark.mutate.groups import AT_ONCE
from opal_spark.mutate.record import names_told_apart, other_members, unknown_names
from opal_spark.sources.text.csv_lines import first_line, is_true

PLACE = "_opal_place"


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterFiles:
    """Where the files are, how they are read, and by which fields they are partitioned."""

    files: Sequence[MasterFile]
    format: str
    options: Mapping[str, str]  # of the store
    csv: Mapping[str, str]
    heads: dict[tuple[str, str], str | None] = field(
        default_factory=dict
    )  # of files that were looked into, by root and path

    @property
    def partition_by(self) -> list[str]:
        """The names of the folders, which all files share."""
        found = {tuple(file.values()) for file in self.files}
        if len(found) > 1:
            one, other, *_ = sorted(found, key=len)
            raise InvalidInputError(
                f"the master has files in folders of {list(other)} and of {list(one)}: move them into folders of one kind"
            )
        return list(next(iter(found), ()))


def format_named(names: Sequence[str], given: str | None, what: str) -> str:
    """The format given, or what the endings say; of files whose names say nothing CSV, as Hadoop's part files are."""
    if given is not None:
        return given
    formats = {format_of(name) or "csv" for name in names}
    if len(formats) > 1:
        raise InvalidInputError(
            f"the {what} are files of the formats {', '.join(sorted(formats))}; give one format at a time"
        )
    return formats.pop()


def found_schema(spark: SparkSession, master: MasterFiles) -> StructType:
    """The fields of the files, and then those of the folders: as texts, for only who gives a schema knows better."""
    folders = [StructField(name, StringType()) for name in master.partition_by]
    if master.format == "csv":
        names = _csv_names(master)
        return StructType([*(StructField(name, StringType()) for name in names), *folders])
    rows = _load(spark, master, None)
    return StructType(
        [
            *(field for field in rows.schema if field.name not in (*master.partition_by, CORRUPT)),
            *folders,
        ]
    )


def known_schema(spark: SparkSession, master: MasterFiles, form: MasterForm | None) -> StructType:
    """Return the fields of a master that a run may have written.

    Text formats have no types, and an empty file has no fields: both follow from the record. What
    was added to the files since counts too, so that no field is lost silently.
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
    found = found_schema(spark, master)
    if form.format == "json":
        return StructType(_with_new_members(recorded, found))
    known = {name.casefold() for name in recorded.names}
    added = [field for field in found if field.name.casefold() not in known]
    return StructType([*recorded.fields, *added])


def _with_new_members(recorded: StructType, found: StructType) -> list[StructField]:
    """Return the recorded fields, and those that files of JSON have in addition, at any depth."""
    found_types = {field.name: field.dataType for field in found}
    fields = []
    for column in recorded:
        other = found_types.get(column.name, column.dataType)
        fields.append(StructField(column.name, _grown(column.dataType, other)))
    return [*fields, *(new for new in found if new.name not in recorded.names)]


def _grown(recorded: DataType, found: DataType) -> DataType:
    match recorded, found:
        case StructType(), StructType():
            return StructType(_with_new_members(recorded, found))
        case ArrayType(), ArrayType():
            return ArrayType(_grown(recorded.elementType, found.elementType))
    return recorded


def naming_file(master: MasterFiles) -> tuple[str, str] | None:
    """The first file of CSV that has a line, and this line: it names the fields, or counts them."""
    for storage, paths in by_root(master):
        for path in paths:
            if (line := first_line(storage, path, master.csv)) is not None:
                return f"{storage.uri}/{path}", line
    return None


def _csv_names(master: MasterFiles) -> list[str]:
    found = naming_file(master)
    cells = [] if found is None else header_cells(found[1], master.csv)
    return (
        cells if is_true(master.csv, "header") else [f"_c{number}" for number in range(len(cells))]
    )


def read_files(spark: SparkSession, master: MasterFiles, schema: StructType) -> DataFrame:
    """The fields of a schema; of CSV and JSON also the text of rows that do not fit it, and their file."""
    if master.format in ("csv", "json"):
        schema = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    return _load(spark, master, schema)


def by_root(master: MasterFiles) -> Iterator[tuple[Storage, list[str]]]:
    paths: dict[str, list[str]] = {}
    for file in master.files:
        paths.setdefault(file.root, []).append(file.path)
    for root, found in paths.items():
        yield open_storage(root, options_for(root, master.options)), found


def _load(spark: SparkSession, master: MasterFiles, schema: StructType | None) -> DataFrame:
    parts = []
    for storage, paths in by_root(master):
        if master.format == "avro":
            parts += [
                _load_avro(spark, master, storage, group, schema)
                for group in _by_head(master, storage, paths).values()
            ]
        elif master.format == "csv" and is_true(master.csv, "header") and schema is not None:
            for line, group in _by_head(master, storage, paths).items():
                parts.append(
                    _load_root(
                        spark,
                        master,
                        storage,
                        group,
                        _in_order(master, storage, group[0], line, schema),
                    )
                )
        else:
            parts.append(_load_root(spark, master, storage, paths, schema))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _by_head(
    master: MasterFiles, storage: Storage, paths: Sequence[str]
) -> dict[str | None, list[str]]:
    """The files of each header, or of Avro of each schema: Spark takes the first file's for all that it reads together."""

    def head(path: str) -> str | None:
        key = (storage.uri, path)
        if key not in master.heads:
            master.heads[key] = (
                schema_text(storage, path)
                if master.format == "avro"
                else first_line(storage, path, master.csv)
            )
        return master.heads[key]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        heads = list(pool.map(head, paths))
    found: dict[str | None, list[str]] = {}
    for line, path in zip(heads, paths, strict=True):
        found.setdefault(line, []).append(path)
    return found


def _in_order(
    master: MasterFiles, storage: Storage, path: str, line: str | None, schema: StructType
) -> StructType:
    """The fields as the header of a file of CSV has them."""
    if line is None:
        return schema
    names = header_cells(line, master.csv)
    rest = [field for field in schema if field.name in (*master.partition_by, CORRUPT)]
    known = {field.name.casefold(): field for field in schema if field not in rest}
    given = [name.casefold() for name in names]
    problems = [
        f"field {name!r} is there twice" for name in names if given.count(name.casefold()) > 1
    ]
    problems += unknown_names(
        [name for name in names if name.casefold() not in known],
        [field.name for field in known.values()],
    )
    problems += [
        f"field {field.name!r} is missing" for name, field in known.items() if name not in given
    ]
    if problems:
        raise InvalidInputError(
            f"{storage.uri}/{path}, line 1: {'; '.join(problems)}. The header is {line}; the master's records have "
            f"{','.join(field.name for field in known.values())}. Correct the file, or take it out of the master"
        )
    return StructType([*(known[name] for name in given), *rest])


def _load_avro(
    spark: SparkSession,
    master: MasterFiles,
    storage: Storage,
    paths: Sequence[str],
    schema: StructType | None,
) -> DataFrame:
    """Of one schema. Avro has fewer types than Spark, whose reader does not bridge that."""
    found = _load_root(spark, master, storage, paths[:1], None)
    own = [field for field in found.schema if field.name not in master.partition_by]
    if schema is None:
        return found.select(*[F.col(quoted(field.name)) for field in own])
    folders = [field for field in schema if field.name in master.partition_by]
    rows = _load_root(spark, master, storage, paths, StructType([*own, *folders]))
    _refuse_other_members(f"{storage.uri}/{paths[0]}", own, schema)
    loaded = frozenset(rows.columns)  # each look asks the JVM for all names
    present = [
        F.col(quoted(field.name)).cast(field.dataType).alias(field.name)
        for field in schema
        if field.name in loaded
    ]
    return rows.select(
        *present,
        *[
            F.lit(None).cast(field.dataType).alias(field.name)
            for field in schema
            if field.name not in loaded
        ],
    )


def _refuse_other_members(file: str, own: Sequence[StructField], schema: StructType) -> None:
    """Raise InvalidInputError if nested members of a file are not those of the schema."""
    expected = {field.name: field.dataType for field in schema}
    for column in own:
        kind = expected.get(column.name, column.dataType)
        differing = other_members(column.dataType, kind, column.name)
        if differing is not None:
            raise InvalidInputError(
                f"{file}: {differing}, as the master's records have it. Write the master's files "
                "with one schema"
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
    try:
        with few_listing_tasks(spark), names_told_apart(f"the files in {storage.uri}"):
            rows = (reader if schema is None else reader.schema(schema)).load(
                spark_paths(storage, paths)
            )
    except AnalysisException as error:
        if error.getCondition() in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise NoRowsError(
                f"there is no master to read in {storage.uri}: correct the path"
            ) from error
        raise
    if schema is None or CORRUPT not in schema.names:
        return rows
    return rows.select(
        *[F.col(quoted(name)) for name in rows.columns],
        rows.metadataColumn("_metadata").getField("file_path").alias(PLACE),
    )
