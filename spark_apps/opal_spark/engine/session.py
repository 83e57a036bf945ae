"""The Spark session and its storage settings. The only module that may use PySpark's internals."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
# The release of each minor version of which Maven has all parts
_COMPLETE_RELEASES = {"4.1": "4.1.1", "4.2": "4.2.0"}
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
_PARSE_PLACE = re.compile(
    r"(?:\s*\[\w+\] )?(?P<message>[\s\S]*?)\.?"
    r"(?: SQLSTATE: \w+)? \(line (?P<line>\d+), pos (?P<column>\d+)\)"
)
_lock = Lock()
# By session and setting: the session's own value, and the values that threads want now
_wanted_values: dict[tuple[object, str], tuple[str | None, list[Any]]] = {}


def open_session(name: str) -> "SparkSession":
    """Return the session that spark-submit prepared, or a new local session.

    Without a Java it sets JAVA_HOME to the runtime of the extra `java`.
    """
    import os
    import sys

    check_installed_spark()
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(name).getOrCreate()


def use_this_python(spark: "SparkSession") -> None:
    """Let local workers run the Python of this process, unless a Python is configured.

    Spark's default is `python3` on the PATH, which may lack Arrow.
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
    return f"org.apache.spark:{name}_2.13:{_COMPLETE_RELEASES.get(minor, own)}"


def add_avro(spark: "SparkSession") -> None:
    """Add Spark's package for Avro to a session that lacks it."""
    if _knows_avro(spark):
        return
    from opal_spark.engine.failures import short_message

    package = spark_package("spark-avro")
    try:
        # Spark has all other jars that this one depends on
        spark.sql(f"ADD JAR 'ivy://{package}?transitive=false'").collect()
    except Exception as error:
        raise InvalidInputError(
            f"Spark needs {package} for Avro, which could not be fetched ({short_message(error)}). "
            f"Start Spark with it: `opal mutate --conf spark.jars.packages={package}`, "
            "or without a network --conf spark.jars=FILE"
        ) from error


def _knows_avro(spark: "SparkSession") -> bool:
    from pyspark.errors import AnalysisException

    # Spark looks for the format before the file: if it knows the format, the file is the error
    try:
        _ = spark.read.format("avro").schema("x INT").load("file:///opal-no-such-file.avro").schema
    except AnalysisException as error:
        message = str(error)
        is_unknown = "Failed to find data source" in message or "DATA_SOURCE_NOT_FOUND" in message
        return not is_unknown
    return True


def storage_options(spark: "SparkSession", uri: str) -> dict[str, str]:
    """Return an S3 store's options from Spark's S3A settings, otherwise none.

    So this process reaches the store in the same way as Spark.
    """
    if not is_s3(uri):
        return {}
    return store_options(lambda name: _conf(spark, name))


def parallelism(spark: "SparkSession") -> int:
    """Return roughly how many tasks run at once."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    # A Connect server does not report its cores, but the plan of a range has a split for each core
    splits = re.search(r"splits=(\d+)", _plan_text(spark.range(2), "simple"))
    return int(splits[1]) if splits else _UNKNOWN_CORES


def rough_rows(rows: "DataFrame") -> int | None:
    """Return Spark's own estimate of the row count; None if Spark has none.

    Spark estimates from file sizes; after a join the estimate is far too high.
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
    """Return the bytes of a plan's result, which its text has such as `1.5 MiB`."""
    size = re.search(r"Statistics\(sizeInBytes=([0-9.E+]+) ([KMGTPE]?)i?B", plan_text)
    if size is None:
        return _UNKNOWN_BYTES
    number, prefix = size[1], size[2]
    # 0 for bytes, 1 for KiB, 2 for MiB and so on
    power = "KMGTPE".index(prefix) + 1 if prefix else 0
    return int(float(number) * 1024**power)


def row_bytes(kind: "DataType") -> int:
    """Return the bytes of a value in Spark's estimates (DataType.defaultSize)."""
    match kind.typeName():
        case "struct":
            return sum(row_bytes(field.dataType) for field in cast("StructType", kind))
        case "array":
            return row_bytes(cast("ArrayType", kind).elementType)
        case "map":
            map_type = cast("MapType", kind)
            return row_bytes(map_type.keyType) + row_bytes(map_type.valueType)
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
            f"spark.opal.cache.bytes={max_bytes!r} is not a number of bytes; "
            "write digits only, such as 1073741824"
        )
    return CacheSettings(backend=backend, folder=folder, max_bytes=int(max_bytes))


@contextmanager
def few_listing_tasks(spark: "SparkSession") -> Iterator[None]:
    """Let Spark list the files of a read in few tasks, within the block.

    By default Spark starts a task for each path: 5,000 files take 11 s, in few tasks half a second.
    Classic Spark lists files when a DataFrame is defined. Connect lists them when the DataFrame is
    used, usually after the block, so there the setting does not help.
    """
    with _setting(spark, _DISCOVERY, _LISTING_TASKS):
        yield


@contextmanager
def shuffles_of(spark: "SparkSession", size: int) -> Iterator[None]:
    """Limit a shuffle's partitions within the block to what fits `size` bytes.

    Spark joins small partitions, but not the partitions of cached rows: 200 of them took 2 to 5 s
    in each of seven stages, for three rows.
    """
    partitions_by_size = -(-size // _SHUFFLED_BYTES)
    partitions = max(parallelism(spark), partitions_by_size)
    with _setting(spark, _SHUFFLE, partitions, lowers=True):
        yield


@contextmanager
def java_charsets(spark: "SparkSession", *, needed: bool) -> Iterator[None]:
    """Let Spark use all encodings that Java knows within the block, if `needed`."""
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
    """Let Spark write times to Parquet as TIMESTAMP_MICROS within the block.

    By default Spark writes INT96, which the Parquet standard has deprecated.
    """
    with _setting(spark, _PARQUET_TIMES, "TIMESTAMP_MICROS"):
        yield


@contextmanager
def arrow_batches(spark: "SparkSession", rows: int | None) -> Iterator[None]:
    """Let Spark pass batches of at most `rows` rows to Python within the block.

    A limit of bytes would make Spark measure the batch again after each row, which takes half of an
    ingest's time. Without `rows` the batches are limited by Spark's own number of rows and by
    bytes, even if another thread of the session asks for batches by rows alone.
    """
    max_bytes = _SPARKS_BATCH_BYTES if rows is None else _UNLIMITED
    max_rows = _UNLIMITED if rows is None else rows
    with (
        _setting(spark, _BATCH_BYTES, max_bytes),
        _setting(spark, _BATCH_ROWS, max_rows, lowers=True),
    ):
        yield


def rows_from_arrow(spark: "SparkSession", rows: "pa.Table", schema: "StructType") -> "DataFrame":
    """Return rows of this process as a DataFrame.

    The settings here make Spark run a task for each batch, with a batch for each core. By default
    Spark converts rows below 48 MB to objects, one by one in one thread. An aggregate of 150,000
    rows took 0.45 s by objects, 0.24 s by batches of 10,000 rows, and 0.1 s by a batch for each
    core.
    """
    if is_connect(spark):
        return spark.createDataFrame(rows, schema)
    rows_a_core = -(-len(rows) // parallelism(spark))
    rows_a_task = max(_ROWS_A_TASK, rows_a_core)
    with _setting(spark, _OBJECT_BYTES, _FEW_BYTES), _setting(spark, _BATCH_ROWS, rows_a_task):
        return spark.createDataFrame(rows.combine_chunks(), schema)


def frame_of_arrow(spark: "SparkSession", rows: "pa.Table") -> "DataFrame":
    """Return a caller's table of Arrow as a DataFrame.

    Raises InvalidInputError for a type that Spark does not have, and for nanoseconds that it would
    cut off.
    """
    import pyarrow as pa
    from pyspark.errors import PySparkTypeError

    fields = [field.with_type(_in_microseconds(field.type)) for field in rows.schema]
    try:
        return spark.createDataFrame(rows.cast(pa.schema(fields)))
    except (PySparkTypeError, pa.ArrowInvalid) as error:
        raise InvalidInputError(
            f"Spark cannot hold a column of the rows ({error}); cast the column in Arrow first"
        ) from error


def _in_microseconds(kind: "pa.DataType") -> "pa.DataType":
    """Return a type with microseconds in place of nanoseconds, also in nested types."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_microseconds(kind.item_type))
    return kind


@contextmanager
def _setting(
    spark: "SparkSession", name: str, value: int | str, *, lowers: bool = False
) -> Iterator[None]:
    """Set a session's setting within the block, and restore it afterwards.

    If threads want different values, the least one is set. The session's own value is restored when
    the last thread has left its block. With `lowers` the own value is never raised, unless it is 0
    or negative, which means no limit.
    """
    key = (_identity(spark), name)
    with _lock:
        if key in _wanted_values:
            own_value, values = _wanted_values[key]
        else:
            own_value, values = spark.conf.get(name, None), []
        limits: list[Any] = []
        if lowers and own_value and int(own_value) > 0:
            limits.append(int(own_value))
        spark.conf.set(name, str(min([*limits, *values, value])))
        _wanted_values[key] = (own_value, [*values, value])
    try:
        yield
    finally:
        with _lock:
            own_value, values = _wanted_values.pop(key)
            values.remove(value)
            if values:
                _wanted_values[key] = (own_value, values)
                spark.conf.set(name, str(min([*limits, *values])))
            elif own_value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, own_value)


def _identity(spark: "SparkSession") -> object:
    """Return an id of the session: several Python objects may stand for one session."""
    session: Any = spark
    if is_connect(spark):
        return session.session_id
    return session._jsparkSession.sessionUUID()  # noqa: SLF001  # it has no public id


def _conf(spark: "SparkSession", name: str) -> str | None:
    value: Any = spark.conf.get(name, None)
    return value or None


def text_with_causes(error: Exception) -> str:
    """Return the texts of Spark's error and of its causes, a line each.

    Since Spark 4.3 the error of a database has the driver's message only in its causes. Errors of
    Connect have no causes.
    """
    texts = []
    cause: Any = error
    while cause is not None:
        texts.append(str(cause))
        cause = getattr(cause, "_cause", None)
    return "\n".join(texts)


def is_connect(spark: "SparkSession") -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntaxFault:
    """A fault that Spark's parser finds: its line from 1 on, its column from 0 on."""

    message: str
    line: int
    column: int


def syntax_fault(spark: "SparkSession", text: str, *, is_known: bool) -> SyntaxFault | None:
    """Return the fault that Spark's parser finds in a text, or None; run nothing.

    Over Connect only EXPLAIN parses a text without running it, and it does not take the statements
    that an extension of Spark adds. So there a statement that is not known to be Spark's own counts
    as readable.
    """
    from pyspark.errors import ParseException, PySparkException

    before = ""
    try:
        if not is_connect(spark):
            java_session = spark._jsparkSession  # noqa: SLF001  # the parser has no public face
            java_session.sessionState().sqlParser().parsePlan(text)
        elif is_known:
            before = "EXPLAIN "
            spark.sql(f"{before}{text}")
    except ParseException as error:
        match = _PARSE_PLACE.search(str(error))
        # The values of parameters are not known here
        if match is None or "PARAMETER" in (error.getCondition() or ""):
            return None
        line, column = int(match["line"]), int(match["column"])
        if line == 1:
            column -= len(before)
        message = " ".join(match["message"].split())
        return SyntaxFault(message=f"Spark's parser: {message}", line=line, column=column)
    except PySparkException:
        # The text is parsed: what is wrong with it depends on what runs before it
        return None
    return None


def task_counts(spark: "SparkSession") -> tuple[int, int]:
    """Return the numbers of completed tasks and of all tasks in running stages.

    For classic Spark only; Connect pushes its progress.
    """
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    # A stage may have ended between the two calls
    running = [info for info in infos if info is not None]
    completed_tasks = sum(info.numCompletedTasks for info in running)
    tasks = sum(info.numTasks for info in running)
    return completed_tasks, tasks
