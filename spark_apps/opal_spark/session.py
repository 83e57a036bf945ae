"""The Spark session and what it knows of stores. The only room that may look below PySpark's public face."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from opal_lake.errors import InvalidInputError
from opal_lake.key_store.cache.near_runs import CacheSettings
from opal_spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Hadoop's names for S3A against the store's own
_S3A = {
    "fs.s3a.endpoint": "endpoint_url",
    "fs.s3a.endpoint.region": "region_name",
    "fs.s3a.access.key": "aws_access_key_id",
    "fs.s3a.secret.key": "aws_secret_access_key",
    "fs.s3a.session.token": "aws_session_token",
    "fs.s3a.path.style.access": "path_style",
}
_DISCOVERY = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_UNKNOWN_BYTES = 1 << 50  # Spark says 8 EB of a source that it knows nothing of
_SPARKS_BATCH_BYTES, _UNLIMITED = 64 << 20, 2**31 - 1
_lock = Lock()
_held: dict[tuple[object, str], tuple[str | None, list[int]]] = {}


def open_session(name: str) -> "SparkSession":
    """The session that spark-submit prepared, or a local one. Brings a JRE where there is none but the `java` extra."""
    import os
    import sys

    from pyspark.sql import SparkSession

    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName(name).getOrCreate()


def use_this_python(spark: "SparkSession") -> None:
    """Local workers run the Python that this process runs, unless somebody said which: `python3` of the PATH need not have Arrow."""
    import os
    import sys

    if is_connect(spark) or "PYSPARK_PYTHON" in os.environ or not str(spark.sparkContext.master).startswith("local"):
        return
    if _conf(spark, "spark.pyspark.python") is None:
        spark.sparkContext.pythonExec = sys.executable


def storage_options(spark: "SparkSession", uri: str) -> dict[str, str]:
    """What Spark's own S3A settings say, so that both reach the store in the same way. Empty where they say nothing."""
    if not uri.startswith(("s3://", "s3a://")):
        return {}
    found = {ours: _conf(spark, f"spark.hadoop.{theirs}") for theirs, ours in _S3A.items()}
    options = {name: value for name, value in found.items() if value}
    endpoint = options.get("endpoint_url")
    if endpoint and "://" not in endpoint:
        secure = _conf(spark, "spark.hadoop.fs.s3a.connection.ssl.enabled") != "false"
        options["endpoint_url"] = f"{'https' if secure else 'http'}://{endpoint}"
    return options


def parallelism(spark: "SparkSession") -> int:
    """How many tasks run at once, roughly."""
    if is_connect(spark):
        return 8
    return int(spark.sparkContext.defaultParallelism)


def rough_rows(rows: "DataFrame") -> int | None:
    """Spark's own guess of how many rows there are: from file sizes, or wildly high after a join; None where it knows nothing."""
    if is_connect(rows.sparkSession):
        return None
    plan: Any = rows._jdf.queryExecution().optimizedPlan()  # noqa: SLF001  # statistics have no public face
    size = int(str(plan.stats().sizeInBytes()))
    return None if size >= _UNKNOWN_BYTES else size // max(1, int(plan.schema().defaultSize()))


def cache_settings(spark: "SparkSession") -> CacheSettings:
    """How workers keep key-store runs near."""
    given = {name: _conf(spark, f"spark.opal.cache.{name}") for name in ("backend", "folder", "bytes")}
    most = given["bytes"]
    if most is not None and not most.isdecimal():
        raise InvalidInputError(f"spark.opal.cache.bytes={most!r} is no number of bytes; write it in digits")
    limits = {} if most is None else {"max_bytes": int(most)}
    return CacheSettings(backend=given["backend"] or "mapped", folder=given["folder"], **limits)


def session_zone(spark: "SparkSession") -> str:
    return spark.conf.get("spark.sql.session.timeZone") or "UTC"


@contextmanager
def few_listing_tasks(spark: "SparkSession") -> Iterator[None]:
    """Spark starts one task a path to find out about files that it is given by name: 11 s for 5,000, half a second with few tasks.

    Classic Spark does it while a DataFrame is defined; Connect only when it is used, where this does not reach.
    """
    with _setting(spark, _DISCOVERY, 8):
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


@contextmanager
def _setting(spark: "SparkSession", name: str, value: int, *, lowers: bool = False) -> Iterator[None]:
    """Of threads that want different values the least counts; the session's own comes back when the last of them is done.

    `lowers`: where the session's own is less, that one stays.
    """
    key = (_identity(spark), name)
    with _lock:
        before, wanted = _held.get(key) or (spark.conf.get(name, None), [])
        own = [int(before)] if lowers and before and int(before) > 0 else []
        spark.conf.set(name, str(min([*own, *wanted, value])))
        _held[key] = (before, [*wanted, value])
    try:
        yield
    finally:
        with _lock:
            before, wanted = _held.pop(key)
            wanted.remove(value)
            if wanted:
                _held[key] = (before, wanted)
                spark.conf.set(name, str(min([*own, *wanted])))
            elif before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, before)


def _identity(spark: "SparkSession") -> object:
    """One session can have several Python objects."""
    session: Any = spark
    return session.session_id if is_connect(spark) else session._jsparkSession.sessionUUID()  # noqa: SLF001  # no public name tells them apart


def _conf(spark: "SparkSession", name: str) -> str | None:
    value: Any = spark.conf.get(name, None)
    return value or None


def is_connect(spark: "SparkSession") -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def task_counts(spark: "SparkSession") -> tuple[int, int]:
    """Of the stages that run now: how many tasks are done, and how many there are. Classic Spark only; Connect reports by itself."""
    tracker = spark.sparkContext.statusTracker()
    stages = [stage for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()) if stage is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
