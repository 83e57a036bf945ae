"""Tasks of Spark: over each partition of rows, for each piece of work, or in stages.

Works and results are pickled. A pickled dataclass has its fields by position, so a worker with
another version of the class would silently take one field for another. So a worker checks that it
has the driver's version of `opal_lake` before it unpickles anything. The check does not distinguish
two builds of one version, and Spark itself pickles the readers of `format("opal")` without a check:
install the same build everywhere.
"""

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from zipimport import zipimporter

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import opal_lake
from opal_lake.data.segment import DataFile
from opal_lake.engine.executor import Attempt, Batches, Stage, Task
from opal_lake.engine.executor import T as Result
from opal_lake.engine.executor import W as Work
from opal_lake.log.snapshot import Snapshot
from opal_spark.engine.failures import worker_errors
from opal_spark.engine.session import arrow_batches, parallelism

OUTPUT = "output binary"
FIXED_WIDTH_ROWS = 10_000
# Rows of a batch with texts. Any executor has memory for 1024 rows with texts of 50 KB, and for
# 4096 rows that are small on disk, even if they are compressed a hundredfold.
_FEW_ROWS, _MANY_ROWS = 1024, 4096
_SMALL_ROW = 128  # bytes on disk
_PAGES = 8 << 10  # bytes of a file that do not depend on its rows
_SPARKS_ARCHIVES = ("pyspark.zip", "py4j-", "spark-core_")
_TASK_BYTES = 256 << 20
_UNBOUNDED_TYPES = (T.BinaryType, T.ArrayType, T.MapType, T.StructType, T.VariantType)
_SQL = {pa.bool_(): "boolean", pa.int32(): "int", pa.int64(): "bigint", pa.binary(): "binary"}
_WORKS = pa.schema([pa.field("task", pa.int32(), False), pa.field("work", pa.binary(), False)])


def collect_outputs(
    rows: DataFrame, task: Task[Result], rows_a_batch: int | None, names: Sequence[str] = ()
) -> list[Result]:
    """Run a task over each partition of rows, and return the tasks' results.

    Without `rows_a_batch` Spark limits batches by rows and by bytes. If `rows` has the plain names
    `_0`, `_1` and so on, `names` are the columns' names for the task.
    """
    task_names = list(names) or rows.columns

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        named = (batch.rename_columns(task_names) for batch in batches)
        result = task(named, this_attempt())
        yield pa.RecordBatch.from_pydict({"output": [pickle.dumps(result)]})
        forget_archives()

    plain = rows if names else plainly_named(rows)
    with worker_errors(), arrow_batches(rows.sparkSession, rows_a_batch):
        outputs = plain.mapInArrow(with_same_version(run), OUTPUT).collect()
    # Safe to unpickle: only our own tasks wrote these
    return [pickle.loads(row.output) for row in outputs]


def run_works(
    spark: SparkSession, task: Callable[[Work, str], Result], works: Sequence[Work]
) -> list[Result]:
    """Run a task for each work, and return the results in the order of the works."""
    if not works:
        return []
    indexed_works = list(enumerate(works))
    rows = work_rows(spark, indexed_works, len(works))
    results: dict[int, Result] = {}
    for indexed_results in collect_outputs(rows, partial(_do_works, task=task), None):
        results.update(indexed_results)
    return [results[index] for index in range(len(works))]


def work_rows(spark: SparkSession, works: Sequence[Any], tasks: int) -> DataFrame:
    """Return pickled works as rows, distributed evenly over `tasks` partitions."""
    task_numbers = [index % tasks for index in range(len(works))]
    pickled = [pickle.dumps(work) for work in works]
    columns = [pa.array(task_numbers, pa.int32()), pa.array(pickled, pa.binary())]
    rows = spark.createDataFrame(pa.table(columns, schema=_WORKS))
    return rows.repartitionById(tasks, F.col("task"))


def with_same_version(
    task: Callable[[Batches], Iterator[pa.RecordBatch]],
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` that runs the task.

    It raises InvalidInputError on a worker with another version of opal-lake.
    """
    packed = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]  # PySpark's copy has no types
    expected = opal_lake.__version__

    # Spark unpickles everything that a function refers to before it runs the function. So this one
    # imports opal_lake in its body, and has no annotations.
    def run(batches):  # type: ignore[no-untyped-def]  # see above
        import opal_lake
        from opal_lake.errors import InvalidInputError

        installed = getattr(opal_lake, "__version__", "unknown")
        if installed != expected:
            raise InvalidInputError(
                f"the driver has opal-lake {expected}, but a Python worker of Spark has "
                f"{installed} ({opal_lake.__path__[0]}). Install the same version for both; on a "
                "cluster, build a new image or a new archive with `opal pack`"
            )
        # Safe to unpickle: the driver's own
        yield from pickle.loads(packed)(batches)

    return run


def works_of(batches: Batches) -> Iterator[Any]:
    """Yield the unpickled works of a task."""
    for batch in batches:
        for pickled in batch.column(1).to_pylist():
            # Safe to unpickle: the driver's own
            yield pickle.loads(pickled)


def _do_works(
    batches: Batches, attempt: Attempt, *, task: Callable[[Any, str], Result]
) -> list[tuple[int, Result]]:
    return [(index, task(work, attempt.name)) for index, work in works_of(batches)]


def run_stages(spark: SparkSession, stages: Sequence[Stage], slots: int) -> list[Any]:
    """Run stages in one action, and return the results of the last stage's tasks.

    A stage has two kinds of rows: those that it reads from its works, and those that the tasks of
    the previous stage yield. It runs a task for each slot of rows.
    """
    by_slot: DataFrame | None = None
    for index, stage in enumerate(stages):
        read = with_same_version(partial(_read_works, read=stage.read))
        rows = _stage_works(spark, stage).mapInArrow(read, _ddl(stage.schema))
        if by_slot is not None:
            run_previous = with_same_version(partial(_run_task, task=stages[index - 1].task))
            yielded = by_slot.mapInArrow(run_previous, _ddl(stage.schema))
            rows = yielded.union(rows)
        by_slot = rows.repartitionById(slots, F.col("slot"))
    assert by_slot is not None
    last_task = partial(_run_last_task, task=stages[-1].task)
    return collect_outputs(by_slot, last_task, FIXED_WIDTH_ROWS, by_slot.columns)


def _stage_works(spark: SparkSession, stage: Stage) -> DataFrame:
    tasks_by_size = -(-stage.size // _TASK_BYTES)
    # Four tasks a core, so that one slow task does not delay the stage; more for many bytes
    wanted = max(4 * parallelism(spark), tasks_by_size)
    tasks = max(1, min(len(stage.works), wanted))
    return work_rows(spark, stage.works, tasks)


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{member.name} {_SQL[member.type]}" for member in schema)


def _read_works(
    batches: Batches, *, read: Callable[[Iterator[Any]], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    yield from read(works_of(batches))
    forget_archives()


def _run_task(
    batches: Batches, *, task: Callable[[Batches], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    yield from task(batches)
    forget_archives()


def _run_last_task(batches: Batches, _: Attempt, *, task: Callable[[Batches], Any]) -> Any:
    return task(batches)


def this_attempt() -> Attempt:
    """Return the attempt of the current Spark task."""
    context = TaskContext.get()
    assert context is not None
    name = str(context.taskAttemptId())
    return Attempt(part=context.partitionId(), name=name, in_background=True)


def plainly_named(rows: DataFrame) -> DataFrame:
    """Return the rows with columns `_0`, `_1` and so on.

    mapInArrow fails on names with dots or backticks.
    """
    return rows.toDF(*[f"_{index}" for index in range(len(rows.columns))])


def rows_a_batch(schema: T.StructType, base: Snapshot | None = None) -> int | None:
    """Return how many rows of a schema are passed to Python at a time.

    None if a value may be as large as a file: then bytes must limit a batch. Each batch has a cost,
    so a batch has many rows with texts if the newest ingests of `base` had small rows.
    """
    kinds = [field.dataType for field in schema.fields]
    if any(isinstance(kind, _UNBOUNDED_TYPES) for kind in kinds):
        return None
    if not any(isinstance(kind, T.StringType) for kind in kinds):
        return FIXED_WIDTH_ROWS
    has_small_rows = base is not None and _has_small_rows(base)
    return _MANY_ROWS if has_small_rows else _FEW_ROWS


def _has_small_rows(base: Snapshot) -> bool:
    # Only the commits since the checkpoint are looked at, because they are in memory already
    files: list[DataFile] = []
    for commit in base.commits:
        if commit.actions.ingested_side is not None:
            return False
        files += commit.actions.ingested
    return bool(files) and all(_is_of_small_rows(file) for file in files)


def _is_of_small_rows(file: DataFile) -> bool:
    return file.size - file.footer_bytes <= _SMALL_ROW * file.rows + _PAGES


def forget_archives() -> None:
    """Forget importers of Spark's archives; this spares the next task 0.2 s.

    Spark begins every task with `importlib.invalidate_caches()`. Before Python 3.12 this reads each
    archive again that has an importer. An import that needs a forgotten importer makes a new one.
    Only the importers of Spark's own archives are forgotten: these are large, and do not change
    while a worker lives.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if not isinstance(importer, zipimporter):
            continue
        archive = os.path.basename(importer.archive)
        if archive.startswith(_SPARKS_ARCHIVES):
            sys.path_importer_cache.pop(path, None)
