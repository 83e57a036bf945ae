"""Tables of other formats as sources of a bootstrap.

A bootstrap lists the files of a source once, and then reads batches of files.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake.errors import InvalidInputError, NotFoundError, OpalError
from opal_lake.source import DELTA_CONF, PACKAGES, Files
from opal_lake.write.bootstrap import (
    BootstrapPlan,
    SourceFile,
    SourceTable,
    cut_batches,
    plain_path,
)
from opal_spark.engine.failures import short_message
from opal_spark.engine.session import STRICT, few_listing_tasks
from opal_spark.sources.paths import one_file, open_files

_FILE, _WANTED = "_opal_source_file", "_opal_wanted_file"
_UNREADABLE = re.compile(r"\S+ is not a Parquet file|Malformed ORC file \S+")
_DELTA_COMMIT = re.compile(r"/(\d{20})\.json$")
_WAY_OUT = "restore the files, or bootstrap a new table"


def plan_source(
    spark: SparkSession, source: SourceTable, schema: StructType | None, batch_bytes: int
) -> BootstrapPlan:
    """List the source's files now, and return the plan of the bootstrap.

    Partition columns have the types of `schema`, if the schema of the new table is given.
    """
    with _explained(source):
        fixed = _at_version(spark, source)
        rows = _rows(spark, fixed)
        if source.format == "iceberg":
            files = _list_iceberg(spark, fixed, rows)
        else:
            files = _list_files(rows, source)
    folders = _folders(source, files)
    return BootstrapPlan(
        source=fixed,
        schema=_with_types(rows.schema, schema, folders).jsonValue(),
        folders=folders,
        batches=cut_batches(files, source, batch_bytes),
    )


def batch_rows(spark: SparkSession, plan: BootstrapPlan, batch: int) -> DataFrame:
    """Return the rows of a batch, as they were when the source was listed."""
    files = plan.batches[batch]
    with _explained(plan.source):
        if plan.source.format in PACKAGES:
            return _rows_of_files(spark, _rows(spark, plan.source), plan.source, files)
        _check_unchanged(spark, files)
        reader = (
            spark.read.format(plan.source.format)
            .schema(StructType.fromJson(dict(plan.schema)))
            .options(**STRICT)
        )
        if plan.folders:
            reader = reader.option("basePath", _hadoop(plan.source.location))
        with few_listing_tasks(spark):
            return reader.load([_literal(file.path) for file in files])


@contextmanager
def _explained(source: SourceTable) -> Iterator[None]:
    """Raise an InvalidInputError if Spark cannot open the source within the block."""
    try:
        yield
    except OpalError:
        raise
    except Exception as error:
        text = str(error)
        if "DATA_SOURCE_NOT_FOUND" in text or "ClassNotFoundException" in text:
            raise InvalidInputError(
                f"Spark has no reader for {source.format}: {_advice(source)}"
            ) from error
        if "DELTA_CONFIGURE_SPARK_SESSION" in text:
            raise InvalidInputError(
                f"Spark is not set up to read Delta: {_advice(source)}"
            ) from error
        if isinstance(error, AnalysisException):
            raise InvalidInputError(
                f"{source.location} cannot be read as {source.format}: {short_message(error)}; "
                "correct the path or the format"
            ) from error
        unreadable = _UNREADABLE.search(text)
        if unreadable is not None and source.format not in PACKAGES:
            raise InvalidInputError(
                f"{source.location} has a file that is damaged or not {source.format} "
                f"({unreadable[0]}); correct the format, or remove the file"
            ) from error
        raise


def _advice(source: SourceTable) -> str:
    """Return how to start Spark so that it reads the source's format."""
    package = PACKAGES.get(source.format, "its package")
    arguments = f"--packages {package}"
    command = f"`opal bootstrap --conf spark.jars.packages={package}`"
    if source.format == "delta":
        for name, value in DELTA_CONF.items():
            arguments += f" --conf {name}={value}"
        command += ", which adds the other settings"
    return f"start Spark with {arguments}, or run {command}"


def _at_version(spark: SparkSession, source: SourceTable) -> SourceTable:
    """Return the source with a version: its own, or the newest one of the table."""
    version = source.version
    if source.format == "delta" and version is None:
        version = _newest_delta(spark, source)
    if source.format == "iceberg" and version is None:
        refs = spark.read.format("iceberg").load(_iceberg(source, "refs"))
        main = refs.where("name = 'main'").select("snapshot_id").collect()
        # A table without a commit has no branch `main`
        version = main[0].snapshot_id if main else None
    return SourceTable(location=source.location, format=source.format, version=version)


def _newest_delta(spark: SparkSession, source: SourceTable) -> int:
    commits = f"{_literal(source.location.rstrip('/'))}/_delta_log/*.json"
    log = spark.read.format("binaryFile").load(commits)
    versions = []
    for row in log.select("path").collect():
        commit = _DELTA_COMMIT.search(row.path)
        if commit is not None:
            versions.append(int(commit[1]))
    if not versions:
        raise NotFoundError(f"{source.location} has no Delta log; correct the path")
    return max(versions)


def _rows(spark: SparkSession, source: SourceTable) -> DataFrame:
    """Return all rows of the source's version."""
    if source.format not in PACKAGES:
        files = one_file(Files(paths=(source.location,), format=source.format), source.location)
        return open_files(spark, files, source.format, {"mergeSchema": "true"})
    if source.format == "delta":
        location = _hadoop(source.location)
    else:
        location = _iceberg(source, None)
    reader = spark.read.format(source.format)
    if source.version is not None:
        reader = reader.option("versionAsOf", str(source.version))
    return reader.load(location)


def _list_files(rows: DataFrame, source: SourceTable) -> list[SourceFile]:
    """Return the files with rows, and their row counts.

    Parquet, ORC and Delta have the counts in metadata, so that Spark reads no rows.
    """
    metadata = rows.metadataColumn("_metadata")
    stamp = F.unix_millis(metadata.getField("file_modification_time"))
    files = rows.select(
        metadata.getField("file_path").alias("path"),
        metadata.getField("file_size").alias("size"),
        stamp.alias("stamp"),
    )
    counts = files.groupBy("path", "size", "stamp").count().collect()
    # Files of Delta never change, so no modification time is recorded
    if source.format == "delta":
        return [SourceFile(path=row.path, size=row.size, rows=row["count"]) for row in counts]
    return [
        SourceFile(path=unquote(row.path), size=row.size, rows=row["count"], stamp_ms=row.stamp)
        for row in counts
    ]


def _list_iceberg(spark: SparkSession, source: SourceTable, rows: DataFrame) -> list[SourceFile]:
    # The table has no commit
    if source.version is None:
        return []
    reader = spark.read.format("iceberg").option("versionAsOf", str(source.version))
    # The content 0 is a file of rows; other contents are files of deletes
    data_files = reader.load(_iceberg(source, "files")).where("content = 0").collect()
    sizes = {row.file_path: row.file_size_in_bytes for row in data_files}
    paths = rows.select(rows.metadataColumn("_file").alias("path"))
    counts = paths.groupBy("path").count().collect()
    return [SourceFile(path=row.path, size=sizes[row.path], rows=row["count"]) for row in counts]


def _rows_of_files(
    spark: SparkSession, rows: DataFrame, source: SourceTable, files: Sequence[SourceFile]
) -> DataFrame:
    """Return the rows of some files."""
    if source.format == "delta":
        file_path = rows.metadataColumn("_metadata").getField("file_path")
    else:
        file_path = rows.metadataColumn("_file")
    wanted = pa.array([file.path for file in files], pa.string())
    chosen = spark.createDataFrame(pa.table({_WANTED: wanted}))
    # A join, because thousands of paths as literals would make a plan of megabytes
    is_chosen = F.col(_FILE) == F.col(_WANTED)
    with_file = rows.withColumn(_FILE, file_path)
    return with_file.join(F.broadcast(chosen), is_chosen, "left_semi").drop(_FILE)


def _check_unchanged(spark: SparkSession, files: Sequence[SourceFile]) -> None:
    """Raise InvalidInputError if files were changed after they were listed.

    It runs before the rows of the batch are written to the table.
    """
    paths = [_literal(file.path) for file in files]
    try:
        with few_listing_tasks(spark):
            listed = spark.read.format("binaryFile").load(paths)
        stamp = "unix_millis(modificationTime) AS stamp"
        now = listed.selectExpr("path", "length", stamp).collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise InvalidInputError(
            f"files of the source were deleted since the bootstrap began ({short_message(error)}); "
            f"{_WAY_OUT}"
        ) from error
    stamps = {plain_path(row.path): (row.length, row.stamp) for row in now}
    for file in files:
        if stamps.get(plain_path(file.path)) != (file.size, file.stamp_ms):
            raise InvalidInputError(
                f"{file.path} was changed since the bootstrap began; {_WAY_OUT}"
            )


def _folders(source: SourceTable, files: Sequence[SourceFile]) -> tuple[str, ...]:
    """Return the partition columns in paths, such as `day` for `day=2026-11-01`."""
    if source.format in PACKAGES or not files:
        return ()
    root = plain_path(source.location) + "/"
    _, _, path = plain_path(files[0].path).partition(root)
    columns = []
    for folder in path.split("/")[:-1]:
        column, equals, _ = folder.partition("=")
        if equals:
            columns.append(unquote(column))
    return tuple(columns)


def _with_types(
    inferred: StructType, schema: StructType | None, folders: Sequence[str]
) -> StructType:
    """Return the inferred schema, with the table's types for columns of folders.

    Spark infers a number from `01` in a folder's name; the table's column may be a string.
    """
    kinds = {}
    if schema is not None:
        kinds = {field.name.casefold(): field.dataType for field in schema.fields}
    folder_names = {name.casefold() for name in folders}
    typed = StructType()
    for field in inferred.fields:
        kind = field.dataType
        if field.name.casefold() in folder_names:
            kind = kinds.get(field.name.casefold(), kind)
        typed.add(field.name, kind)
    return typed


def _iceberg(source: SourceTable, part: str | None) -> str:
    """Return the name of a table, or of one of its metadata tables, for Spark.

    A table has a path or a name in a catalog.
    """
    location = _hadoop(source.location.rstrip("/"))
    if part is None:
        return location
    mark = "#" if "/" in location else "."
    return f"{location}{mark}{part}"


def _literal(path: str) -> str:
    """Return the path with its pattern characters escaped for Spark."""
    return one_file(Files(paths=(path,), format="parquet"), _hadoop(path)).paths[0]


def _hadoop(path: str) -> str:
    return re.sub(r"^s3://", "s3a://", path)
