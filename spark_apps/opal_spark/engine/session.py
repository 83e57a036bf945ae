"""The Spark session and its storage settings. The only module that may use PySpark's internals."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from opal_lake.errors import InvalidInputError
from opal_lake.key_store.cache.near_runs import CacheSettings
from opal_lake.s3a import is_s3, store_options
from opal_spark.engine.java import ensure_java
from opal_spark.engine.versions import check_installed_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

# For readers of files: with the session's own settings a file that is lost or damaged could be silently missing rows.
STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
_DISCOVERY = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_SHUFFLE, _SHUFFLED_BYTES = "spark.sql.shuffle.partitions", 16 << 20
_CHARSETS = "spark.sql.legacy.javaCharsets"
_PARQUET_TIMES, _MICROS = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_OBJECT_BYTES = "spark.sql.execution.arrow.localRelationThreshold"
_FEW_BYTES, _ROWS_A_TASK = 256 << 10, 20_000  # of rows that come from this process
_UNKNOWN_BYTES = 1 << 50  # Spark says 8 EB of a source that it knows nothing of
_SPARKS_BATCH_BYTES, _UNLIMITED = 64 << 20, 2**31 - 1
_UNKNOWN_CORES = 8
_WHOLE = {"4.1": "4.1.1", "4.2": "4.2.0"}  # the releases of which Maven has all parts
_LONG_DIGITS = 18
_WEIGHTS = {
    "boolean": 1,
    "byte": 1,
    "short": 2,
    "integer": 4,
    "float": 4,
    "date": 4,
    "string": 20,
    "binary": 100,
    "void": 1,
}
_lock = Lock()
_held: dict[tuple[object, str], tuple[str | None, list[Any]]] = {}


def open_session(name: str) -> "SparkSession":
    """The session that spark-submit prepared, or a local one. Brings a JRE where there is none but the `java` extra."""
    import os
    import sys

    check_installed_spark()
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(name).getOrCreate()


def use_this_python(spark: "SparkSession") -> None:
    """Local workers run this process's Python, unless it is configured: `python3` on the PATH may lack Arrow."""
    import os
    import sys

    if (
        is_connect(spark)
        or "PYSPARK_PYTHON" in os.environ
        or not str(spark.sparkContext.master).startswith("local")
    ):
        return
    spark.sparkContext.pythonExec = (
        _conf(spark, "spark.pyspark.python") or sys.executable
    )  # only spark-submit heeds that setting itself


def spark_package(name: str) -> str:
    """The Maven coordinates of a part of Spark that its distribution lacks."""
    import pyspark

    own = pyspark.__version__
    minor = ".".join(own.split(".")[:2])
    return f"org.apache.spark:{name}_2.13:{_WHOLE.get(minor, own)}"


def bring_avro(spark: "SparkSession") -> None:
    """Let a session read and write Avro, if it does not yet. Its jar needs nothing that Spark lacks."""
    if _knows_avro(spark):
        return
    from opal_spark.engine.failures import first_words

    package = spark_package("spark-avro")
    try:
        spark.sql(f"ADD JAR 'ivy://{package}?transitive=false'").collect()
    except Exception as error:
        raise InvalidInputError(
            f"Spark needs {package} for Avro, which could not be fetched ({first_words(error)}): start Spark with it, as "
            f"`opal mutate --conf spark.jars.packages={package}`, or without a network with --conf spark.jars=FILE"
        ) from error


def _knows_avro(spark: "SparkSession") -> bool:
    """By opening a file that is not there."""
    from pyspark.errors import AnalysisException

    try:
        _ = spark.read.format("avro").schema("x INT").load("file:///opal-no-such-file.avro").schema
    except AnalysisException as error:
        return not any(
            text in str(error) for text in ("Failed to find data source", "DATA_SOURCE_NOT_FOUND")
        )
    return True


def storage_options(spark: "SparkSession", uri: str) -> dict[str, str]:
    """Storage options from Spark's S3A settings, so that both reach the store in the same way. Empty if there are none."""
    return store_options(lambda name: _conf(spark, name)) if is_s3(uri) else {}


def parallelism(spark: "SparkSession") -> int:
    """How many tasks run at once, roughly."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    splits = re.search(
        r"splits=(\d+)", _plan_text(spark.range(2), "simple")
    )  # a Connect server cuts a range for its cores
    return int(splits[1]) if splits else _UNKNOWN_CORES


def rough_rows(rows: "DataFrame") -> int | None:
    """Spark's own estimate of the row count: from file sizes, or far too high after a join; None if it has none."""
    if is_connect(rows.sparkSession):
        size, width = _said_bytes(_plan_text(rows, "cost")), row_bytes(rows.schema)
    else:
        plan: Any = rows._jdf.queryExecution().optimizedPlan()  # noqa: SLF001  # statistics have no public face
        size, width = int(str(plan.stats().sizeInBytes())), int(plan.schema().defaultSize())
    return None if size >= _UNKNOWN_BYTES else size // max(1, width)


def _plan_text(rows: "DataFrame", mode: str) -> str:
    """What `explain` prints."""
    untyped: Any = rows
    return str(untyped._explain_string(mode=mode))  # noqa: SLF001  # a Connect server says it in no other way


def _said_bytes(text: str) -> int:
    """The size of the plan's root."""
    size = re.search(r"Statistics\(sizeInBytes=([0-9.E+]+) ([KMGTPE]?)i?B", text)
    return int(float(size[1]) * 1024 ** " KMGTPE".index(size[2] or " ")) if size else _UNKNOWN_BYTES


def row_bytes(kind: "DataType") -> int:
    """The size of a value that Spark assumes in its estimates (DataType.defaultSize)."""
    match kind.typeName():
        case "struct":
            return sum(row_bytes(field.dataType) for field in cast("StructType", kind))
        case "array":
            return row_bytes(cast("ArrayType", kind).elementType)
        case "map":
            return row_bytes(cast("MapType", kind).keyType) + row_bytes(
                cast("MapType", kind).valueType
            )
        case "decimal":
            return 8 if cast("DecimalType", kind).precision <= _LONG_DIGITS else 16
    return _WEIGHTS.get(kind.typeName(), 8)


def cache_settings(spark: "SparkSession") -> CacheSettings:
    """The workers' cache of key-store runs."""
    given = {
        name: _conf(spark, f"spark.opal.cache.{name}") for name in ("backend", "folder", "bytes")
    }
    most = given["bytes"]
    if most is not None and not most.isdecimal():
        raise InvalidInputError(
            f"spark.opal.cache.bytes={most!r} is no number of bytes; write it in digits"
        )
    limits = {} if most is None else {"max_bytes": int(most)}
    return CacheSettings(backend=given["backend"] or "mapped", folder=given["folder"], **limits)


@contextmanager
def few_listing_tasks(spark: "SparkSession") -> Iterator[None]:
    """Spark starts one task a path to find out about files that it is given by name: 11 s for 5,000, half a second with few tasks.

    Classic Spark does it while a DataFrame is defined; Connect only when it is used, where this does not reach.
    """
    with _setting(spark, _DISCOVERY, 8):
        yield


@contextmanager
def shuffles_of(spark: "SparkSession", size: int) -> Iterator[None]:
    """No more partitions of a shuffle than `size` bytes of files are worth. Spark joins small ones, but not those of rows that it keeps:
    200 of them took 2 to 5 s in each of seven stages, for three rows.
    """
    with _setting(
        spark, _SHUFFLE, max(parallelism(spark), -(-size // _SHUFFLED_BYTES)), lowers=True
    ):
        yield


@contextmanager
def java_charsets(spark: "SparkSession", *, needed: bool) -> Iterator[None]:
    """Spark 4 reads and writes few encodings, but for this setting."""
    before = spark.conf.get(_CHARSETS, None)
    if needed:
        spark.conf.set(_CHARSETS, "true")
    try:
        yield
    finally:
        if needed and before is not None:
            spark.conf.set(_CHARSETS, before)
        elif needed:
            spark.conf.unset(_CHARSETS)


@contextmanager
def standard_times(spark: "SparkSession") -> Iterator[None]:
    """Times of Parquet as its standard has them: by default Spark writes INT96, which the standard has given up."""
    with _setting(spark, _PARQUET_TIMES, _MICROS):
        yield


@contextmanager
def arrow_batches(spark: "SparkSession", rows: int | None) -> Iterator[None]:
    """Batches for Python cut by rows alone: to cut by bytes Spark measures a batch again after each row, half of an ingest's time.

    Without `rows` they are cut by bytes too, also while another thread of the session wants it otherwise.
    """
    most = 2**31 - 1
    with (
        _setting(spark, _BATCH_BYTES, _SPARKS_BATCH_BYTES if rows is None else most),
        _setting(spark, _BATCH_ROWS, rows or most, lowers=True),
    ):
        yield


def rows_from_arrow(spark: "SparkSession", rows: "pa.Table", schema: "StructType") -> "DataFrame":
    """Rows of this process as a DataFrame. Spark makes a task of each batch; below 48 MB it makes an object of each row instead, in one
    thread, and serializes these. Of 150,000 rows, an aggregate took 0.45 s by objects, 0.24 s by batches of 10,000 rows, and 0.1 s so.
    """
    if is_connect(spark):
        return spark.createDataFrame(rows, schema)
    rows_a_task = max(_ROWS_A_TASK, -(-len(rows) // parallelism(spark)))
    with _setting(spark, _OBJECT_BYTES, _FEW_BYTES), _setting(spark, _BATCH_ROWS, rows_a_task):
        return spark.createDataFrame(rows.combine_chunks(), schema)


@contextmanager
def _setting(
    spark: "SparkSession", name: str, value: int | str, *, lowers: bool = False
) -> Iterator[None]:
    """Of threads that want different values the least counts; the session's own comes back when the last of them is done.

    `lowers`: where the session's own is less, that one stays.
    """
    key = (_identity(spark), name)
    with _lock:
        before, values = _held.get(key) or (spark.conf.get(name, None), [])
        own = [int(before)] if lowers and before and int(before) > 0 else []
        spark.conf.set(name, str(min([*own, *values, value])))
        _held[key] = (before, [*values, value])
    try:
        yield
    finally:
        with _lock:
            before, values = _held.pop(key)
            values.remove(value)
            if values:
                _held[key] = (before, values)
                spark.conf.set(name, str(min([*own, *values])))
            elif before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, before)


def _identity(spark: "SparkSession") -> object:
    """An id of the session, which can have several Python objects."""
    session: Any = spark
    return session.session_id if is_connect(spark) else session._jsparkSession.sessionUUID()  # noqa: SLF001  # no public name tells them apart


def _conf(spark: "SparkSession", name: str) -> str | None:
    value: Any = spark.conf.get(name, None)
    return value or None


def text_with_causes(error: Exception) -> str:
    """Return the text of Spark's error and of its causes.

    Since 4.3 the message of a database's error leaves out what the driver said. Connect tells no causes.
    """
    texts = []
    cause: Any = error
    while cause is not None:
        texts.append(str(cause))
        cause = getattr(cause, "_cause", None)
    return "\n".join(texts)


def is_connect(spark: "SparkSession") -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def task_counts(spark: "SparkSession") -> tuple[int, int]:
    """Of the stages that run now: how many tasks are done, and how many there are. Classic Spark only; Connect reports by itself."""
    tracker = spark.sparkContext.statusTracker()
    stages = [
        stage
        for stage in map(tracker.getStageInfo, tracker.getActiveStageIds())
        if stage is not None
    ]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
