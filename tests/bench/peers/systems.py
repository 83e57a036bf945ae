"""Each system's steps for a batch.

One instance is one table; imports are late, as no process has every system's libraries.
"""

import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from tests.bench.peers.boxes import Box, box_sql, meets
from tests.bench.peers.rows import NAMES, SCHEMA

MB = 1 << 20
Sizes = dict[str, int]
Parts = Mapping[str, float]
MERGE = """
MERGE INTO {table} t USING batch s ON t.key = s.key
WHEN MATCHED AND s.mod_time >= t.mod_time THEN UPDATE SET *
WHEN NOT MATCHED THEN INSERT *
"""


# What a statement does with the rows that it finds
_SET = {"update": "UPDATE {table} SET v2 = v2 + 1", "delete": "DELETE FROM {table}"}
_THEN = {"update": "UPDATE SET v2 = t.v2 + 1", "delete": "DELETE"}


class System(ABC):
    """One table, which is its folder.

    What `upsert` and `bootstrap` return are seconds of their parts, where there are parts.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder

    @abstractmethod
    def bootstrap(self, rows: DataFrame) -> Parts: ...

    @abstractmethod
    def upsert(self, rows: DataFrame) -> Parts: ...

    @abstractmethod
    def current(self) -> DataFrame: ...

    def unfiltered(self) -> DataFrame | None:
        """Scan the files that `current` reads, without a check which rows are current.

        None if the format has no such scan.
        """
        return None

    def bootstrap_small(self, rows: DataFrame, files: int) -> Parts:
        """Write a table of that many files."""
        return self.bootstrap(rows.repartition(files))

    def compact(self, target_mb: int) -> None:
        """Few files for many, each as large as asked for."""
        raise NotImplementedError  # the catalog says who does

    def cluster(self, columns: Sequence[str], target_mb: int) -> None:
        """All rows in Z-order, or in the order used instead of it."""
        raise NotImplementedError

    def opened(self, box: Box) -> Sizes:
        """Return the data files that a read of a box opens, by Spark's plan, with sizes.

        An empty box is the whole table.
        """
        paths = [Path(unquote(urlsplit(uri).path)) for uri in self.in_box(box).inputFiles()]
        return {str(path): path.stat().st_size for path in paths}

    def in_box(self, box: Box) -> DataFrame:
        """Return the rows of a box, asked for as a user would."""
        return self.current().where(box_sql(box)) if box else self.current()

    def feed(self, commits: int, *, net: bool) -> DataFrame | None:
        """Return what the last upserts changed, with rows as before and after.

        None if the format cannot report it.
        """
        return None

    def get(self, keys: Sequence[str]) -> list[int]:
        """Return the column v2 of the rows of these keys, all columns being read."""
        return [row["v2"] for row in self.current().where(F.col("key").isin(list(keys))).collect()]

    def change(self, kind: str, where: str) -> Parts:
        """Update or delete the rows that meet a condition, in one try."""
        raise NotImplementedError

    def change_keys(self, kind: str, path: str) -> Parts:
        """Update or delete the rows whose keys are in a file."""
        raise NotImplementedError

    def merge(self, path: str) -> Parts:
        """Merge the rows of a file by key."""
        return self.upsert(self.spark.read.schema(SCHEMA).parquet(path))

    def drop(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class SqlSystem(System):
    """A system whose tables have a name in Spark's SQL."""

    def sql_name(self) -> str:
        raise NotImplementedError

    def change(self, kind: str, where: str) -> Parts:
        self.spark.sql(f"{_SET[kind].format(table=self.sql_name())} WHERE {where}").collect()
        return {}

    def change_keys(self, kind: str, path: str) -> Parts:
        self.spark.read.parquet(path).createOrReplaceTempView("given")
        self.spark.sql(
            f"MERGE INTO {self.sql_name()} t USING given s ON t.key = s.key "
            f"WHEN MATCHED THEN {_THEN[kind]}"
        ).collect()
        return {}


class Plain(System):
    """The limit: rows are appended, none is ever replaced."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder)
        self.appended: list[list[str]] = []

    def bootstrap(self, rows: DataFrame) -> Parts:
        return self.upsert(rows)

    def upsert(self, rows: DataFrame) -> Parts:
        before = {*self.folder.glob("*.parquet")}
        rows.write.mode("append").parquet(str(self.folder))
        self.appended.append(
            [str(path) for path in self.folder.glob("*.parquet") if path not in before]
        )
        return {}

    def current(self) -> DataFrame:
        return self.spark.read.schema(SCHEMA).parquet(str(self.folder))

    def compact(self, target_mb: int) -> None:
        self._rewrite(self.current().coalesce(self._parts(target_mb)))

    def cluster(self, columns: Sequence[str], target_mb: int) -> None:
        """Sorted by the first column alone, as files without Z-order often are."""
        ranges = self.current().repartitionByRange(self._parts(target_mb), columns[0])
        self._rewrite(ranges.sortWithinPartitions(columns[0]))

    def opened(self, box: Box) -> Sizes:
        return {
            str(path): path.stat().st_size
            for path in self.folder.glob("*.parquet")
            if meets(path, box)
        }

    def feed(self, commits: int, *, net: bool) -> DataFrame | None:
        """Return the batches themselves."""
        files = [path for appended in self.appended[-commits:] for path in appended]
        return None if net else self.spark.read.schema(SCHEMA).parquet(*files)

    def _parts(self, target_mb: int) -> int:
        return math.ceil(sum(self.opened({}).values()) / (target_mb * MB))

    def _rewrite(self, rows: DataFrame) -> None:
        fresh = self.folder.with_name(f"{self.folder.name}-rewritten")
        rows.write.parquet(str(fresh))
        shutil.rmtree(self.folder)
        fresh.rename(self.folder)


class Lumos(System):
    """A base and deltas of plain Parquet, merged when read.

    What LinkedIn's paper says came before Opal, without its compaction.

    The newest row of every key in the deltas, and the rows of the base whose key is in no delta.
    That is quicker in Spark than sorting base and deltas together, and right because no delta is
    older than the base.
    """

    def bootstrap(self, rows: DataFrame) -> Parts:
        rows.write.parquet(str(self.folder / "base"))
        return {}

    def upsert(self, rows: DataFrame) -> Parts:
        rows.write.mode("append").parquet(str(self.folder / "deltas"))
        return {}

    def current(self) -> DataFrame:
        reader = self.spark.read.schema(SCHEMA)
        base = reader.parquet(str(self.folder / "base"))
        if not (self.folder / "deltas").exists():
            return base
        newest_first = Window.partitionBy("key").orderBy(F.col("mod_time").desc())
        deltas = reader.parquet(str(self.folder / "deltas")).withColumn(
            "nth", F.row_number().over(newest_first)
        )
        newest = deltas.where("nth = 1").drop("nth")
        return (
            base.join(newest.select("key"), "key", "left_anti").select(*NAMES).unionByName(newest)
        )


class Opal(System):
    """An Opal table; `inline` makes rows visible in the ingest itself."""

    def __init__(
        self, spark: SparkSession, folder: Path, *, inline: bool, file_format: str
    ) -> None:
        from opal_spark import OpalTable

        super().__init__(spark, folder)
        self.inline = inline
        self.versions: list[
            int
        ] = []  # after each upsert: small files may be folded by versions of their own
        schema = spark.createDataFrame([], SCHEMA).schema
        self.table = OpalTable.create(
            spark, str(folder), schema, keys=["key"], delta="mod_time", file_format=file_format
        )

    def bootstrap(self, rows: DataFrame) -> Parts:
        return self.upsert(rows)

    def upsert(self, rows: DataFrame) -> Parts:
        if self.inline:
            self._note(self.table.ingest(rows, metadata="inline"))
            return {}
        began = time.perf_counter()
        self.table.ingest(rows)
        ingested = time.perf_counter()
        self._note(self.table.metagen())
        return {"ingest": ingested - began, "metagen": time.perf_counter() - ingested}

    def _note(self, done: Any) -> None:
        self.versions.append(done.version)

    def current(self) -> DataFrame:
        return self.table.read()

    def unfiltered(self) -> DataFrame | None:
        from opal_spark.engine.scan import scan_files

        snapshot = self.table.snapshot_at()
        return scan_files(
            self.spark,
            snapshot.storage,
            list(snapshot.files.values()),
            snapshot.spec,
        )

    def bootstrap_small(self, rows: DataFrame, files: int) -> Parts:
        """Write small files in batch mode, whose files are the tasks of the source."""
        self.table.ingest(rows.repartition(files))
        self.table.metagen()
        return {}

    def compact(self, target_mb: int) -> None:
        self.table.compact(target_mb=target_mb)

    def cluster(self, columns: Sequence[str], target_mb: int) -> None:
        self.table.zorder(columns, target_mb=target_mb, whole=True)

    def feed(self, commits: int, *, net: bool) -> DataFrame | None:
        return self.table.changes(
            self.versions[-commits - 1] + 1, mode="netChanges" if net else "none"
        )

    def get(self, keys: Sequence[str]) -> list[int]:
        rows = self.table.get([{"key": key} for key in keys])
        return [int(value) for value in rows["v2"].to_pylist()]

    def in_box(self, box: Box) -> DataFrame:
        return self.table.read(where=box_sql(box) if box else None)

    def change(self, kind: str, where: str) -> Parts:
        if kind == "delete":
            self._table().delete(where, tries=1)
        else:
            self._table().update({"v2": "v2 + 1"}, where=where, tries=1)
        return {}

    def change_keys(self, kind: str, path: str) -> Parts:
        merge = self._table().merge(self._given(path), on="t.key = s.key")
        if kind == "delete":
            merge.when_matched_delete().execute()
        else:
            merge.when_matched_update({"v2": "t.v2 + 1"}).execute()
        return {}

    def merge(self, path: str) -> Parts:
        merge = self._table().merge(self._given(path), on="t.key = s.key")
        merge = merge.when_matched_update_all(where="s.mod_time >= t.mod_time")
        merge.when_not_matched_insert_all().execute()
        return {}

    def _table(self) -> Any:
        """Return the table as one writer of several has it."""
        from opal_spark import OpalTable

        return OpalTable.for_path(self.spark, str(self.folder))

    def _given(self, path: str) -> Any:
        """Return the rows of a file, as the engine takes them."""
        return self.spark.read.parquet(path)


class OpalLocal(Opal):
    """An Opal table whose statements run in this process, without Spark."""

    def change_keys(self, kind: str, path: str) -> Parts:
        return self._counted(partial(super().change_keys, kind, path))

    def merge(self, path: str) -> Parts:
        return self._counted(partial(super().merge, path))

    def _counted(self, run: Callable[[], object]) -> Parts:
        """Run a statement; return its requests to the store by kind."""
        self.store.requests.clear()
        run()
        return dict(self.store.requests)

    def _table(self) -> Any:
        from opal_lake.table import table_on

        return table_on(self.store)

    def _given(self, path: str) -> Any:
        import pyarrow.parquet as pq

        return pq.read_table(path)

    @cached_property
    def store(self) -> Any:
        from opal_lake.storage.open import open_storage
        from tests.bench.counting_store import CountingStore

        return CountingStore(inner=open_storage(str(self.folder)))


class Delta(SqlSystem):
    """Delta Lake: MERGE with deletion vectors."""

    def sql_name(self) -> str:
        return f"delta.`{self.folder}`"

    def bootstrap(self, rows: DataFrame) -> Parts:
        rows.write.format("delta").save(str(self.folder))
        return {}

    def upsert(self, rows: DataFrame) -> Parts:
        rows.createOrReplaceTempView("batch")
        self.spark.sql(MERGE.format(table=f"delta.`{self.folder}`"))
        return {}

    def current(self) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.folder))

    def compact(self, target_mb: int) -> None:
        self._optimize(target_mb, "")

    def cluster(self, columns: Sequence[str], target_mb: int) -> None:
        self._optimize(target_mb, f"ZORDER BY ({', '.join(columns)})")

    def _optimize(self, target_mb: int, order: str) -> None:
        for setting in ("minFileSize", "maxFileSize"):
            self.spark.conf.set(f"spark.databricks.delta.optimize.{setting}", str(target_mb * MB))
        self.spark.sql(f"OPTIMIZE delta.`{self.folder}` {order}").collect()


class DeltaFeed(Delta):
    """Delta with the change data feed, for which writers write files of changes."""

    def feed(self, commits: int, *, net: bool) -> DataFrame | None:
        if net:
            return None
        newest = self.spark.sql(f"DESCRIBE HISTORY delta.`{self.folder}` LIMIT 1").collect()[0][
            "version"
        ]
        reader = (
            self.spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", newest - commits + 1)
        )
        return reader.load(str(self.folder))


class Iceberg(SqlSystem):
    """Iceberg, format version 3: MERGE, merge-on-read, hence deletion vectors."""

    MODE, VERSION = "merge-on-read", "3"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder.parent / "bench" / folder.name)
        self.name = f"lake.bench.`{folder.name}`"

    def sql_name(self) -> str:
        return self.name

    def bootstrap(self, rows: DataFrame) -> Parts:
        writer = (
            rows.writeTo(self.name).using("iceberg").tableProperty("format-version", self.VERSION)
        )
        for operation in ("merge", "update", "delete"):
            writer = writer.tableProperty(f"write.{operation}.mode", self.MODE)
        writer.create()
        return {}

    def upsert(self, rows: DataFrame) -> Parts:
        rows.createOrReplaceTempView("batch")
        self.spark.sql(MERGE.format(table=self.name))
        return {}

    def current(self) -> DataFrame:
        return self.spark.table(self.name)

    def compact(self, target_mb: int) -> None:
        self._rewrite(target_mb)

    def cluster(self, columns: Sequence[str], target_mb: int) -> None:
        self._rewrite(
            target_mb,
            f"strategy => 'sort', sort_order => 'zorder({', '.join(columns)})',",
            "'rewrite-all', 'true'",
        )

    def opened(self, box: Box) -> Sizes:
        """Return the files of the table's own planning of a scan."""
        lists = self._java.org.apache.iceberg.relocated.com.google.common.collect.Lists
        scan = self._iceberg.newScan()
        expressions = self._java.org.apache.iceberg.expressions.Expressions
        for column, (low, high) in box.items():
            scan = scan.filter(expressions.greaterThanOrEqual(column, low)).filter(
                expressions.lessThan(column, high)
            )
        tasks = scan.planFiles()
        try:
            files = [task.file() for task in lists.newArrayList(tasks)]
        finally:
            tasks.close()
        return {file.location(): file.fileSizeInBytes() for file in files}

    def _rewrite(self, target_mb: int, strategy: str = "", *options: str) -> None:
        options_sql = ", ".join((f"'target-file-size-bytes', '{target_mb * MB}'", *options))
        table = self.name.removeprefix("lake.").replace("`", "")
        call = (
            f"CALL lake.system.rewrite_data_files(table => '{table}', {strategy} "
            f"options => map({options_sql}))"
        )
        self.spark.sql(call).collect()

    @property
    def _java(self) -> Any:
        return self.spark.sparkContext._jvm

    @property
    def _iceberg(self) -> Any:
        return self._java.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.spark._jsparkSession, self.name
        )

    def drop(self) -> None:
        self.spark.sql(f"DROP TABLE IF EXISTS {self.name} PURGE")
        super().drop()


class IcebergCopyOnWrite(Iceberg):
    """The only mode in which Iceberg reports changes."""

    MODE, VERSION = "copy-on-write", "2"

    def feed(self, commits: int, *, net: bool) -> DataFrame | None:
        """Return changes with update images, or net: the procedure does not do both."""
        snapshots = self.spark.sql(
            f"SELECT snapshot_id FROM {self.name}.snapshots ORDER BY committed_at DESC LIMIT "
            f"{commits + 1}"
        ).collect()
        how = (
            "net_changes => true"
            if net
            else "compute_updates => true, identifier_columns => array('key')"
        )
        table = self.name.removeprefix("lake.").replace("`", "")
        start = snapshots[-1]["snapshot_id"]
        self.spark.sql(
            f"CALL lake.system.create_changelog_view(table => '{table}', changelog_view => "
            f"'reported', {how}, "
            f"options => map('start-snapshot-id', '{start}'))"
        )
        return self.spark.table("reported")


class Hudi(System):
    """Hudi: merge-on-read with the global record-level index.

    Nothing is compacted, as Spark's batch writer does by default.
    """

    OPTIONS: Mapping[str, str] = {
        "hoodie.table.name": "bench",
        "hoodie.datasource.write.recordkey.field": "key",
        "hoodie.datasource.write.precombine.field": "mod_time",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.datasource.write.partitionpath.field": "",
        "hoodie.datasource.write.keygenerator.class": (
            "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
        ),
        "hoodie.metadata.enable": "true",
        "hoodie.metadata.record.index.enable": "true",
        "hoodie.metadata.global.record.level.index.enable": "true",
        "hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX",
        "hoodie.upsert.shuffle.parallelism": "4",
        "hoodie.bulkinsert.shuffle.parallelism": "4",
        "hoodie.insert.shuffle.parallelism": "4",
    }

    def bootstrap(self, rows: DataFrame) -> Parts:
        return self._write(rows, "bulk_insert", "overwrite")

    def upsert(self, rows: DataFrame) -> Parts:
        return self._write(rows, "upsert", "append")

    def _write(self, rows: DataFrame, operation: str, mode: str) -> Parts:
        writer = (
            rows.write.format("hudi")
            .options(**self.OPTIONS)
            .option("hoodie.datasource.write.operation", operation)
        )
        writer.mode(mode).save(str(self.folder))
        return {}

    def current(self) -> DataFrame:
        return self.spark.read.format("hudi").load(str(self.folder)).select(*NAMES)


def open_system(name: str, spark: SparkSession, folder: Path) -> System:
    if name.startswith("opal-"):
        system = OpalLocal if name == "opal-local" else Opal
        return system(
            spark,
            folder,
            inline=name != "opal-batch",
            file_format="orc" if name.endswith("-orc") else "parquet",
        )
    by_name: dict[str, type[System]] = {
        "delta": Delta,
        "delta-cdf": DeltaFeed,
        "iceberg": Iceberg,
        "iceberg-cow": IcebergCopyOnWrite,
        "hudi": Hudi,
        "lumos": Lumos,
        "plain": Plain,
    }
    return by_name[name](spark, folder)
