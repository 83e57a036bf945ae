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

# For readers of files: with the session's own settings, the rows of a lost or damaged file could be
# missing silently
STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
_DISCOVERY = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LISTING_TASKS = 8
_SHUFFLE = "spark.sql.shuffle.partitions"
_SHUFFLED_BYTES = 16 << 20  # bytes of files that a partition of a shuffle is worth
_CHARSETS = "spark.sql.legacy.javaCharsets"
_PARQUET_TIMES = "spark.sql.parquet.outputTimestampType"
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_OBJECT_BYTES = "spark.sql.execution.arrow.localRelationThreshold"
# For rows that come from this process
_FEW_BYTES, _ROWS_A_TASK = 256 << 10, 20_000
# Spark reports 8 EB for a source whose size it does not know
_UNKNOWN_BYTES = 1 << 50
_SPARKS_BATCH_BYTES = 64 << 20
_UNLIMITED = 2**31 - 1
_UNKNOWN_CORES = 8
# The releases of which Maven has all parts, by minor version
_WHOLE = {"4.1": "4.1.1", "4.2": "4.2.0"}
_LONG_DIGITS = 18
# Bytes, as Spark's DataType.defaultSize has them; 8 for other types
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
# By session and setting: the session's own value, and those that threads want now
_wanted_values: dict[tuple[object, str], tuple[str | None, list[Any]]] = {}


def open_session(name: str) -> "SparkSession":
    """Return the session that spark-submit prepared, or a local one.

    Sets JAVA_HOME to the `java` extra's runtime where Java is missing.
    """
    import os
    import sys

    check_installed_spark()
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(name).getOrCreate()


def use_this_python(spark: "SparkSession") -> None:
    """Let local workers run this process's Python, unless one is configured.

    `python3` on the PATH may lack Arrow.
    """
    import os
    import sys

    if is_connect(spark) or "PYSPARK_PYTHON" in os.environ:
        return
    if not str(spark.sparkContext.master).startswith("local"):
        return
    # Only spark-submit heeds this setting itself
    configured = _conf(spark, "spark.pyspark.python")
    spark.sparkContext.pythonExec = configured or sys.executable


def spark_package(name: str) -> str:
    """Return the Maven coordinates of a part of Spark that its distribution lacks."""
    import pyspark

    own = pyspark.__version__
    minor = ".".join(own.split(".")[:2])
    return f"org.apache.spark:{name}_2.13:{_WHOLE.get(minor, own)}"


def bring_avro(spark: "SparkSession") -> None:
    """Let a session read and write Avro, if it does not yet."""
    if _knows_avro(spark):
        return
    from opal_spark.engine.failures import first_words

    package = spark_package("spark-avro")
    try:
        # All that this jar depends on is in Spark
        spark.sql(f"ADD JAR 'ivy://{package}?transitive=false'").collect()
    except Exception as error:
        raise InvalidInputError(
            f"Spark needs {package} for Avro, which could not be fetched ({first_words(error)}): "
            f"start Spark with it, as `opal mutate --conf spark.jars.packages={package}`, "
            "or without a network with --conf spark.jars=FILE"
        ) from error


def _knows_avro(spark: "SparkSession") -> bool:
    from pyspark.errors import AnalysisException

    # Spark looks for the format first: where it is known, the missing file is the error
    try:
        _ = spark.read.format("avro").schema("x INT").load("file:///opal-no-such-file.avro").schema
    except AnalysisException as error:
        message = str(error)
        is_unknown = "Failed to find data source" in message or "DATA_SOURCE_NOT_FOUND" in message
        return not is_unknown
    return True


def storage_options(spark: "SparkSession", uri: str) -> dict[str, str]:
    """Return storage options from Spark's S3A settings.

    So both reach the store in the same way. Empty for a store other than S3.
    """
    if not is_s3(uri):
        return {}
    return store_options(lambda name: _conf(spark, name))


def parallelism(spark: "SparkSession") -> int:
    """Return roughly how many tasks run at once."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    # A Connect server reports its cores in no other way, but cuts a range for them
    splits = re.search(r"splits=(\d+)", _plan_text(spark.range(2), "simple"))
    return int(splits[1]) if splits else _UNKNOWN_CORES


def rough_rows(rows: "DataFrame") -> int | None:
    """Return Spark's own estimate of the row count; None if it has none.

    It is made from file sizes, and far too high after a join.
    """
    if is_connect(rows.sparkSession):
        size = _root_bytes(_plan_text(rows, "cost"))
        width = row_bytes(rows.schema)
    else:
        java_rows: Any = rows._jdf  # noqa: SLF001  # statistics have no public face
        plan = java_rows.queryExecution().optimizedPlan()
        size = int(str(plan.stats().sizeInBytes()))
        width = int(plan.schema().defaultSize())
    if size >= _UNKNOWN_BYTES:
        return None
    return size // max(1, width)


def _plan_text(rows: "DataFrame", mode: str) -> str:
    untyped: Any = rows
    return str(untyped._explain_string(mode=mode))  # noqa: SLF001  # `explain` only prints


def _root_bytes(plan_text: str) -> int:
    size = re.search(r"Statistics\(sizeInBytes=([0-9.E+]+) ([KMGTPE]?)i?B", plan_text)
    if size is None:
        return _UNKNOWN_BYTES
    power = " KMGTPE".index(size[2] or " ")
    return int(float(size[1]) * 1024**power)


def row_bytes(kind: "DataType") -> int:
    """Return the bytes of a value in Spark's estimates (DataType.defaultSize)."""
    match kind.typeName():
        case "struct":
            return sum(row_bytes(field.dataType) for field in cast("StructType", kind))
        case "array":
            return row_bytes(cast("ArrayType", kind).elementType)
        case "map":
            of_map = cast("MapType", kind)
            return row_bytes(of_map.keyType) + row_bytes(of_map.valueType)
        case "decimal":
            return 8 if cast("DecimalType", kind).precision <= _LONG_DIGITS else 16
    return _WEIGHTS.get(kind.typeName(), 8)


def cache_settings(spark: "SparkSession") -> CacheSettings:
    """Return the settings of the workers' cache of key-store runs."""
    backend = _conf(spark, "spark.opal.cache.backend") or "mapped"
    folder = _conf(spark, "spark.opal.cache.folder")
    max_bytes = _conf(spark, "spark.opal.cache.bytes")
    if max_bytes is None:
        return CacheSettings(backend=backend, folder=folder)
    if not max_bytes.isdecimal():
        raise InvalidInputError(
            f"spark.opal.cache.bytes={max_bytes!r} is not a number of bytes; write it in digits"
        )
    return CacheSettings(backend=backend, folder=folder, max_bytes=int(max_bytes))


@contextmanager
def few_listing_tasks(spark: "SparkSession") -> Iterator[None]:
    """Let Spark look at files that it is given by name in few tasks.

    It starts one task a path: 11 s for 5,000 files, half a second with few tasks. Classic Spark
    does it while a DataFrame is defined; Connect only when it is used, where this does not reach.
    """
    with _setting(spark, _DISCOVERY, _LISTING_TASKS):
        yield


@contextmanager
def shuffles_of(spark: "SparkSession", size: int) -> Iterator[None]:
    """Limit the partitions of a shuffle to what `size` bytes of files are worth.

    Spark joins small partitions, but not those of rows that it caches: 200 of them took 2 to 5 s in
    each of seven stages, for three rows.
    """
    worth = -(-size // _SHUFFLED_BYTES)
    with _setting(spark, _SHUFFLE, max(parallelism(spark), worth), lowers=True):
        yield


@contextmanager
def java_charsets(spark: "SparkSession", *, needed: bool) -> Iterator[None]:
    """Let Spark 4 read and write all encodings that Java knows, if `needed`."""
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
    """Let Spark write times to Parquet as its standard has them.

    By default Spark writes INT96, which the standard has given up.
    """
    with _setting(spark, _PARQUET_TIMES, "TIMESTAMP_MICROS"):
        yield


@contextmanager
def arrow_batches(spark: "SparkSession", rows: int | None) -> Iterator[None]:
    """Let Spark cut batches for Python after so many rows.

    They are cut by rows alone: to cut by bytes Spark measures a batch again after each row, which
    is half of an ingest's time. Without `rows` they are cut by bytes too, also while another thread
    of the session wants it otherwise.
    """
    max_bytes = _SPARKS_BATCH_BYTES if rows is None else _UNLIMITED
    max_rows = rows or _UNLIMITED
    with (
        _setting(spark, _BATCH_BYTES, max_bytes),
        _setting(spark, _BATCH_ROWS, max_rows, lowers=True),
    ):
        yield


def rows_from_arrow(spark: "SparkSession", rows: "pa.Table", schema: "StructType") -> "DataFrame":
    """Return rows of this process as a DataFrame.

    Spark makes a task of each batch; below 48 MB it makes an object of each row instead, in one
    thread, and serializes these. An aggregate of 150,000 rows took 0.45 s by objects, 0.24 s by
    batches of 10,000 rows, and 0.1 s by a batch for each core.
    """
    if is_connect(spark):
        return spark.createDataFrame(rows, schema)
    rows_a_core = -(-len(rows) // parallelism(spark))
    rows_a_task = max(_ROWS_A_TASK, rows_a_core)
    with _setting(spark, _OBJECT_BYTES, _FEW_BYTES), _setting(spark, _BATCH_ROWS, rows_a_task):
        return spark.createDataFrame(rows.combine_chunks(), schema)


@contextmanager
def _setting(
    spark: "SparkSession", name: str, value: int | str, *, lowers: bool = False
) -> Iterator[None]:
    """Give a session's setting a value, and its own again afterwards.

    If threads want different values the least counts; the session's own comes back when the last of
    them is done. With `lowers` the session's own counts too, where it is above 0.
    """
    key = (_identity(spark), name)
    with _lock:
        before, values = _wanted_values.get(key) or (spark.conf.get(name, None), [])
        lower_limit = [int(before)] if lowers and before and int(before) > 0 else []
        spark.conf.set(name, str(min([*lower_limit, *values, value])))
        _wanted_values[key] = (before, [*values, value])
    try:
        yield
    finally:
        with _lock:
            before, values = _wanted_values.pop(key)
            values.remove(value)
            if values:
                _wanted_values[key] = (before, values)
                spark.conf.set(name, str(min([*lower_limit, *values])))
            elif before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, before)


def _identity(spark: "SparkSession") -> object:
    """Return an id of the session, which can have several Python objects."""
    session: Any = spark
    if is_connect(spark):
        return session.session_id
    return session._jsparkSession.sessionUUID()  # noqa: SLF001  # it has no public id


def _conf(spark: "SparkSession", name: str) -> str | None:
    value: Any = spark.conf.get(name, None)
    return value or None


def text_with_causes(error: Exception) -> str:
    """Return the text of Spark's error and of its causes.

    Since 4.3 the message of a database's error leaves out the driver's. Connect has no causes.
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
    """Return the completed tasks of the running stages, and all their tasks.

    For classic Spark only; Connect pushes its progress.
    """
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    # A stage may have ended between the two calls
    running = [info for info in infos if info is not None]
    completed_tasks = sum(info.numCompletedTasks for info in running)
    tasks = sum(info.numTasks for info in running)
    return completed_tasks, tasks
