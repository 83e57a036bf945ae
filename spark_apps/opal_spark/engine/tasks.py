"""Tasks of Spark: over each partition of rows, for each piece of work, or in stages.

Works and results are pickled, and a pickled dataclass is its fields by position: a worker with other fields would take one for another, and
say nothing of it. So a worker opens these works only with the driver's version of `opal_lake`. Two builds of one version are not told
apart, and the readers of `format("opal")` are pickled by Spark itself, unchecked: bring the same build to all.
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
from opal_lake.engine.executor import Attempt, Batches, Stage, Task
from opal_lake.engine.executor import T as Result
from opal_lake.engine.executor import W as Work
from opal_lake.log.snapshot import Snapshot
from opal_spark.engine.failures import own_python
from opal_spark.engine.session import arrow_batches, parallelism

OUTPUT = "output binary"
FIXED_WIDTH_ROWS = 10_000
_FEW_ROWS, _MANY_ROWS = (
    1024,
    4096,
)  # with texts; of 1024 rows, texts of 50 KB still make batches that any executor can hold
_SMALL_ROW = 128  # bytes on disk: so do 4096 rows that compress a hundredfold
_PAGES = 8 << 10  # bytes that a file of few rows has anyway
_SPARKS_ARCHIVES = ("pyspark.zip", "py4j-", "spark-core_")
_TASK_BYTES = 256 << 20
_SQL = {pa.bool_(): "boolean", pa.int32(): "int", pa.int64(): "bigint", pa.binary(): "binary"}
_WORKS = pa.schema([pa.field("place", pa.int32(), False), pa.field("work", pa.binary(), False)])


def collect_outputs(
    rows: DataFrame, task: Task[Result], rows_a_batch: int | None, names: Sequence[str] = ()
) -> list[Result]:
    """Run a task over each partition and bring back what it returns. Without `rows_a_batch` Spark cuts batches by rows and by bytes.

    `names` are what the task calls the columns, where `rows` has plain names for them already.
    """
    called = list(names) or rows.columns

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        named = (batch.rename_columns(called) for batch in batches)
        yield pa.RecordBatch.from_pydict({"output": [pickle.dumps(task(named, this_attempt()))]})
        forget_archives()

    plain = rows if names else plainly_named(rows)
    with own_python(), arrow_batches(rows.sparkSession, rows_a_batch):
        return [
            pickle.loads(row.output)
            for row in plain.mapInArrow(with_same_version(run), OUTPUT).collect()
        ]  # from our own tasks


def run_works(
    spark: SparkSession, task: Callable[[Work, str], Result], works: Sequence[Work]
) -> list[Result]:
    """A task for each piece of work; results in the order of the works, whatever order they are done in."""
    if not works:
        return []
    rows = work_rows(spark, [*enumerate(works)], len(works))
    results = dict(
        pair
        for pairs in collect_outputs(rows, partial(_do_works, task=task), None)
        for pair in pairs
    )
    return [results[index] for index in range(len(works))]


def work_rows(spark: SparkSession, works: Sequence[Any], tasks: int) -> DataFrame:
    """Works as rows, dealt out to so many tasks."""
    partitions = [index % tasks for index in range(len(works))]
    table = pa.table(
        [pa.array(partitions, pa.int32()), pa.array(map(pickle.dumps, works), pa.binary())],
        schema=_WORKS,
    )
    return spark.createDataFrame(table).repartitionById(tasks, F.col("place"))


def with_same_version(
    task: Callable[[Batches], Iterator[pa.RecordBatch]],
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The task, for `mapInArrow`."""
    packed, expected = cloudpickle.dumps(task), opal_lake.__version__  # type: ignore[no-untyped-call]  # PySpark's copy has no types

    # Names nothing of this package but in its body, and has no annotations: Spark unpickles all that it names before any of it runs
    def run(batches):  # type: ignore[no-untyped-def]  # as said
        import opal_lake
        from opal_lake.errors import InvalidInputError

        installed = getattr(opal_lake, "__version__", "unknown")
        if installed != expected:
            raise InvalidInputError(
                f"the driver has opal-lake {expected}, and a Python worker of Spark has {installed} ({opal_lake.__path__[0]}): "
                "give both the same, on a cluster by a new image or by an archive that `opal pack` makes anew"
            )
        yield from pickle.loads(packed)(batches)  # the driver's own

    return run


def works_of(batches: Batches) -> Iterator[Any]:
    """The works of a task."""
    return (
        pickle.loads(row) for batch in batches for row in batch.column(1).to_pylist()
    )  # the driver's own


def _do_works(
    batches: Batches, attempt: Attempt, *, task: Callable[[Any, str], Result]
) -> list[tuple[int, Result]]:
    return [(index, task(work, attempt.name)) for index, work in works_of(batches)]


def run_stages(spark: SparkSession, stages: Sequence[Stage], slots: int) -> list[Any]:
    """Works to rows, rows to their slots, a task for each slot: several times over, in one action."""
    parts: DataFrame | None = None
    for index, stage in enumerate(stages):
        rows = _work_rows(spark, stage).mapInArrow(
            with_same_version(partial(_read, read=stage.read)), _ddl(stage.schema)
        )
        if parts is not None:
            before = stages[index - 1]
            rows = parts.mapInArrow(
                with_same_version(partial(_made, task=before.task)), _ddl(stage.schema)
            ).union(rows)
        parts = rows.repartitionById(slots, F.col("slot"))
    assert parts is not None
    return collect_outputs(
        parts, partial(_returned, task=stages[-1].task), FIXED_WIDTH_ROWS, parts.columns
    )


def _work_rows(spark: SparkSession, stage: Stage) -> DataFrame:
    """Each work is one of a task's, and of large ones there are few to a task."""
    tasks = max(
        1, min(len(stage.works), max(4 * parallelism(spark), -(-stage.size // _TASK_BYTES)))
    )
    return work_rows(spark, stage.works, tasks)


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{member.name} {_SQL[member.type]}" for member in schema)


def _read(
    batches: Batches, *, read: Callable[[Iterator[Any]], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    yield from read(works_of(batches))
    forget_archives()


def _made(
    batches: Batches, *, task: Callable[[Batches], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    yield from task(batches)
    forget_archives()


def _returned(batches: Batches, _: Attempt, *, task: Callable[[Batches], Any]) -> Any:
    return task(batches)


def this_attempt() -> Attempt:
    """The attempt of the current Spark task."""
    context = TaskContext.get()
    assert context is not None
    return Attempt(
        part=context.partitionId(), name=str(context.taskAttemptId()), in_background=True
    )


def plainly_named(rows: DataFrame) -> DataFrame:
    """`_0`, `_1` and so on: mapInArrow fails on names with dots or backticks."""
    return rows.toDF(*[f"_{index}" for index in range(len(rows.columns))])


def rows_a_batch(schema: T.StructType, base: Snapshot | None = None) -> int | None:
    """How many rows go to Python at a time, whatever their size; None where a value may be as large as a file: bytes have to count.

    Each batch costs something on either side: of texts, many go at a time where the newest ingests brought small rows.
    """
    kinds = [field.dataType for field in schema.fields]
    if any(
        isinstance(kind, T.BinaryType | T.ArrayType | T.MapType | T.StructType | T.VariantType)
        for kind in kinds
    ):
        return None
    if not any(isinstance(kind, T.StringType) for kind in kinds):
        return FIXED_WIDTH_ROWS
    return _MANY_ROWS if base is not None and _has_small_rows(base) else _FEW_ROWS


def _has_small_rows(base: Snapshot) -> bool:
    """An estimate that reads nothing more: from the commits since the checkpoint."""
    files = [file for commit in base.commits for file in commit.actions.ingested]
    is_known = bool(files) and all(commit.actions.ingested_side is None for commit in base.commits)
    return is_known and all(
        file.size - file.footer_bytes <= _SMALL_ROW * file.rows + _PAGES for file in files
    )


def forget_archives() -> None:
    """Spare the next task of this worker 0.2 s.

    Spark lets every task begin with `importlib.invalidate_caches()`, and before Python 3.12 each archive on the path is read anew there.
    An importer that is not remembered is not asked; the next import that looks for one makes it. Only Spark's own archives, which are
    large, and the same for as long as a worker lives: others may have been replaced.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter) and os.path.basename(importer.archive).startswith(
            _SPARKS_ARCHIVES
        ):
            sys.path_importer_cache.pop(path, None)
