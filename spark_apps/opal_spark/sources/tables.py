"""Tables of other formats as sources of a bootstrap: the list of their files, fixed once, and the rows of some files."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from opal_lake.errors import InvalidInputError, NotFoundError, OpalError
from opal_lake.source import DELTA_CONF, PACKAGES, Files
from opal_lake.write.bootstrap import (
    BootstrapPlan,
    SourceFile,
    SourceTable,
    cut_batches,
    plain_path,
)
from opal_spark.engine.failures import first_words
from opal_spark.engine.session import STRICT, few_listing_tasks
from opal_spark.sources.paths import one_file, open_files

_FILE, _WANTED = "_opal_source_file", "_opal_wanted_file"
_UNREADABLE = re.compile(r"\S+ is not a Parquet file|Malformed ORC file \S+")
_DELTA_COMMIT = re.compile(r"/(\d{20})\.json$")


def plan_source(
    spark: SparkSession, source: SourceTable, schema: StructType | None, batch_bytes: int
) -> BootstrapPlan:
    """List the source's files now. Partition columns take their types from the schema of the new table, if there is one."""
    with _explained(source):
        fixed = _at_version(spark, source)
        rows = _rows(spark, fixed)
        files = (
            _list_iceberg(spark, fixed, rows)
            if source.format == "iceberg"
            else _list_files(rows, source)
        )
    folders = _folders(source, files)
    return BootstrapPlan(
        source=fixed,
        schema=_with_types(rows.schema, schema, folders).jsonValue(),
        folders=folders,
        batches=cut_batches(files, source, batch_bytes),
    )


def batch_rows(spark: SparkSession, plan: BootstrapPlan, batch: int) -> DataFrame:
    """The rows of a batch, as they were when the source was listed."""
    files = plan.batches[batch]
    with _explained(plan.source):
        if plan.source.format in PACKAGES:
            return _only(spark, _rows(spark, plan.source), plan.source, files)
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
    """Explains Spark's errors when it cannot open a source."""
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
                f"{source.location} cannot be read as {source.format}: {first_words(error)}; correct the path"
            ) from error
        if source.format not in PACKAGES and (unreadable := _UNREADABLE.search(text)):
            raise InvalidInputError(
                f"{source.location} has a file that is no {source.format}, or damaged ({unreadable[0]}); "
                "correct the format, or take the file away"
            ) from error
        raise


def _advice(source: SourceTable) -> str:
    package = PACKAGES.get(source.format, "its package")
    conf = (
        "".join(f" --conf {name}={value}" for name, value in DELTA_CONF.items())
        if source.format == "delta"
        else ""
    )
    return (
        f"start it with --packages {package}{conf} (`opal bootstrap --conf spark.jars.packages={package}"
        + ("; the rest is set for you)" if conf else ")")
    )


def _at_version(spark: SparkSession, source: SourceTable) -> SourceTable:
    """The source with its newest version, if none was given."""
    version = source.version
    if source.format == "delta" and version is None:
        log = (
            spark.read.format("binaryFile")
            .load(f"{_literal(source.location.rstrip('/'))}/_delta_log/*.json")
            .select("path")
        )
        versions = [
            int(number[1]) for row in log.collect() if (number := _DELTA_COMMIT.search(row.path))
        ]
        if not versions:
            raise NotFoundError(f"{source.location} has no Delta log; correct the path")
        version = max(versions)
    if source.format == "iceberg" and version is None:
        main = (
            spark.read.format("iceberg")
            .load(_iceberg(source, "refs"))
            .where("name = 'main'")
            .select("snapshot_id")
            .collect()
        )
        version = main[0].snapshot_id if main else None
    return SourceTable(location=source.location, format=source.format, version=version)


def _rows(spark: SparkSession, source: SourceTable) -> DataFrame:
    """All rows, as of the version."""
    if source.format not in PACKAGES:
        files = one_file(Files(paths=(source.location,), format=source.format), source.location)
        return open_files(spark, files, source.format, {"mergeSchema": "true"})
    location = _hadoop(source.location) if source.format == "delta" else _iceberg(source, None)
    reader = spark.read.format(source.format)
    return (
        reader.load(location)
        if source.version is None
        else reader.option("versionAsOf", str(source.version)).load(location)
    )


def _list_files(rows: DataFrame, source: SourceTable) -> list[SourceFile]:
    """Files with rows, and their row counts, which Parquet, ORC and Delta hold in metadata."""
    metadata = rows.metadataColumn("_metadata")
    stamp = F.unix_millis(metadata.getField("file_modification_time"))
    keys = [
        metadata.getField("file_path").alias("path"),
        metadata.getField("file_size").alias("size"),
        stamp.alias("stamp"),
    ]
    counted = rows.select(*keys).groupBy("path", "size", "stamp").count().collect()
    if source.format == "delta":  # its files never change
        return [SourceFile(path=row.path, size=row.size, rows=row["count"]) for row in counted]
    return [
        SourceFile(path=unquote(row.path), size=row.size, rows=row["count"], stamp_ms=row.stamp)
        for row in counted
    ]


def _list_iceberg(spark: SparkSession, source: SourceTable, rows: DataFrame) -> list[SourceFile]:
    if source.version is None:
        return []  # nothing was ever written
    listed = (
        spark.read.format("iceberg")
        .option("versionAsOf", str(source.version))
        .load(_iceberg(source, "files"))
    )
    sizes = {row.file_path: row.file_size_in_bytes for row in listed.where("content = 0").collect()}
    counted = (
        rows.select(rows.metadataColumn("_file").alias("path")).groupBy("path").count().collect()
    )
    return [SourceFile(path=row.path, size=sizes[row.path], rows=row["count"]) for row in counted]


def _only(
    spark: SparkSession, rows: DataFrame, source: SourceTable, files: Sequence[SourceFile]
) -> DataFrame:
    """By a join, because a list of thousands of literals would make a plan of megabytes."""
    is_delta = source.format == "delta"
    file_path = (
        rows.metadataColumn("_metadata").getField("file_path")
        if is_delta
        else rows.metadataColumn("_file")
    )
    chosen = spark.createDataFrame(
        pa.table({_WANTED: pa.array([file.path for file in files], pa.string())})
    )
    return (
        rows.withColumn(_FILE, file_path)
        .join(F.broadcast(chosen), F.col(_FILE) == F.col(_WANTED), "left_semi")
        .drop(_FILE)
    )


def _check_unchanged(spark: SparkSession, files: Sequence[SourceFile]) -> None:
    """Fails before anything of the batch is in the table."""
    try:
        with few_listing_tasks(spark):
            listed = spark.read.format("binaryFile").load([_literal(file.path) for file in files])
        now = listed.selectExpr(
            "path", "length", "unix_millis(modificationTime) AS stamp"
        ).collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise InvalidInputError(
            f"files of the source are gone since the bootstrap began ({first_words(error)}); {_WAY_OUT}"
        ) from error
    stamps = {plain_path(row.path): (row.length, row.stamp) for row in now}
    for file in files:
        if stamps.get(plain_path(file.path)) != (file.size, file.stamp_ms):
            raise InvalidInputError(
                f"{file.path} was changed since the bootstrap began; {_WAY_OUT}"
            )


_WAY_OUT = "put back what was there, or bootstrap a new table"


def _folders(source: SourceTable, files: Sequence[SourceFile]) -> tuple[str, ...]:
    """The partition columns in the paths below the source, as `day=2026-11-01`."""
    if source.format in PACKAGES or not files:
        return ()
    parts = (
        plain_path(files[0].path).partition(plain_path(source.location) + "/")[2].split("/")[:-1]
    )
    return tuple(unquote(part.partition("=")[0]) for part in parts if "=" in part)


def _with_types(
    inferred: StructType, schema: StructType | None, folders: Sequence[str]
) -> StructType:
    """Spark infers a number from `01` in a folder's name; the table's column may be a string."""
    kinds = (
        {field.name.casefold(): field.dataType for field in schema.fields}
        if schema is not None
        else {}
    )
    named = {name.casefold() for name in folders}
    return StructType(
        [
            StructField(
                field.name,
                kinds.get(field.name.casefold(), field.dataType)
                if field.name.casefold() in named
                else field.dataType,
            )
            for field in inferred.fields
        ]
    )


def _iceberg(source: SourceTable, part: str | None) -> str:
    """A table by its path or by its name in a catalog, or one of its metadata tables."""
    location = _hadoop(source.location.rstrip("/"))
    return location if part is None else f"{location}{'#' if '/' in location else '.'}{part}"


def _literal(path: str) -> str:
    """The path with its pattern characters escaped for Spark."""
    return one_file(Files(paths=(path,), format="parquet"), _hadoop(path)).paths[0]


def _hadoop(path: str) -> str:
    return re.sub(r"^s3://", "s3a://", path)
