"""The process of one system.

Commands come as JSON lines on standard input, each is answered by one JSON line on standard output.

python -m tests.bench.peers.worker SYSTEM FOLDER MEMORY CORES
"""

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from pyspark.sql import DataFrame, SparkSession

from tests.bench.peers.catalog import SYSTEMS
from tests.bench.peers.rows import NAMES, SCHEMA, Batch, batch_rows, key_rows
from tests.bench.peers.systems import System, open_system

SCANS = {
    "5 columns": ("count(*)", "sum(v1)", "sum(v2)", "max(c)", "max(key)", "max(mod_time)"),
    "2 columns": ("count(*)", "sum(v1)", "sum(v2)"),
}
Answer = dict[str, Any]
# The errors of a statement that lost against another one: Delta's, Iceberg's and ours
_CONFLICT = re.compile(r"Concurrent|CommitFailed|ValidationException|ConflictError")


class Worker:
    """A session and, at a time, one table."""

    def __init__(self, name: str, spark: SparkSession, folder: Path) -> None:
        self.name = name
        self.spark = spark
        self.folder = folder
        self.system: System | None = None

    def do(self, command: Mapping[str, Any]) -> Answer:
        commands: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
            "stage": self.stage,
            "stage-keys": self.stage_keys,
            "bootstrap": self.bootstrap,
            "upsert": self.upsert,
            "scan": self.scan,
            "compact": self.compact,
            "cluster": self.cluster,
            "opened": self.opened,
            "query": self.query,
            "feed": self.feed,
            "get": self.get,
            "change": self.change,
            "merge": self.merge,
            "contend": self.contend,
            "fingerprint": self.fingerprint,
            "drop": self.drop,
            "rest": self.rest,
        }
        return commands[command["do"]](command)

    def stage(self, command: Mapping[str, Any]) -> Answer:
        batch_rows(self.spark, Batch(**command["batch"])).write.parquet(command["path"])
        return {}

    def stage_keys(self, command: Mapping[str, Any]) -> Answer:
        rows = key_rows(self.spark, command["rows"], command["first"], command["count"])
        rows.write.parquet(command["path"])
        return {}

    def bootstrap(self, command: Mapping[str, Any]) -> Answer:
        rows = self._staged(command["path"])
        began = time.perf_counter()
        self.system = open_system(self.name, self.spark, self.folder / command["table"])
        files = command["files"]
        parts = self.system.bootstrap_small(rows, files) if files else self.system.bootstrap(rows)
        return {
            "seconds": time.perf_counter() - began,
            "parts": dict(parts),
            "folder": str(self.system.folder),
        }

    def upsert(self, command: Mapping[str, Any]) -> Answer:
        rows, system = self._staged(command["path"]), self._open
        began = time.perf_counter()
        parts = system.upsert(rows)
        return {"seconds": time.perf_counter() - began, "parts": dict(parts)}

    def scan(self, command: Mapping[str, Any]) -> Answer:
        system, columns = self._open, SCANS[command["columns"]]
        began = time.perf_counter()
        rows = system.unfiltered() if command["unfiltered"] else system.current()
        if rows is None:
            return {}
        actual = rows.selectExpr(*columns).collect()
        return {"seconds": time.perf_counter() - began, "rows": actual[0][0]}

    def compact(self, command: Mapping[str, Any]) -> Answer:
        return self._rewritten(lambda: self._open.compact(command["target_mb"]))

    def cluster(self, command: Mapping[str, Any]) -> Answer:
        return self._rewritten(lambda: self._open.cluster(command["columns"], command["target_mb"]))

    def _rewritten(self, rewrite: Callable[[], None]) -> Answer:
        before = self._open.opened({})
        began = time.perf_counter()
        rewrite()
        seconds = time.perf_counter() - began
        after = self._open.opened({})
        return {
            "seconds": seconds,
            "files": [len(before), len(after)],
            "bytes": [sum(before.values()), sum(after.values())],
        }

    def opened(self, command: Mapping[str, Any]) -> Answer:
        """Return the files that a read of each box opens, and their bytes.

        An empty box is the whole table.
        """
        opened = [self._open.opened(box) for box in command["boxes"]]
        return {
            "files": [len(files) for files in opened],
            "bytes": [sum(files.values()) for files in opened],
        }

    def query(self, command: Mapping[str, Any]) -> Answer:
        began = time.perf_counter()
        rows = [
            self._open.in_box(box).selectExpr(*SCANS["5 columns"]).collect()[0][0]
            for box in command["boxes"]
        ]
        return {"seconds": time.perf_counter() - began, "rows": rows}

    def feed(self, command: Mapping[str, Any]) -> Answer:
        """Read what the last commits changed; nothing if the format cannot report it."""
        began = time.perf_counter()
        feed = self._open.feed(command["commits"], net=command["net"])
        if feed is None:
            return {}
        kinds = (
            ["max(_change_type)"] if "_change_type" in feed.columns else []
        )  # else a plan could leave out which rows are updates
        rows = feed.selectExpr(
            "count(*)", "sum(v2)", "sum(v1)", "max(c)", "max(key)", "max(mod_time)", *kinds
        ).collect()[0]
        return {"seconds": time.perf_counter() - began, "rows": rows[0], "sum": rows[1]}

    def get(self, command: Mapping[str, Any]) -> Answer:
        began = time.perf_counter()
        values = self._open.get(command["keys"])
        return {"seconds": time.perf_counter() - began, "rows": len(values), "sum": sum(values)}

    def change(self, command: Mapping[str, Any]) -> Answer:
        """Update or delete rows: those that meet a condition, or those of the keys in a file."""
        kind, where = command["kind"], command.get("where")
        began = time.perf_counter()
        if where is None:
            parts = self._open.change_keys(kind, command["path"])
        else:
            parts = self._open.change(kind, where)
        return {"seconds": time.perf_counter() - began, "parts": dict(parts)}

    def merge(self, command: Mapping[str, Any]) -> Answer:
        began = time.perf_counter()
        parts = self._open.merge(command["path"])
        return {"seconds": time.perf_counter() - began, "parts": dict(parts)}

    def contend(self, command: Mapping[str, Any]) -> Answer:
        """Run the statements of each writer, all writers at once; count those that run again."""
        began = time.perf_counter()
        with ThreadPoolExecutor(len(command["writers"])) as pool:
            repeats = [*pool.map(self._updated, command["writers"])]
        return {"seconds": time.perf_counter() - began, "repeats": sum(repeats)}

    def _updated(self, conditions: Sequence[str]) -> int:
        """Run updates one after the other; return how often one failed and ran again."""
        repeats = 0
        for where in conditions:
            while not self._is_updated(where):
                repeats += 1
        return repeats

    def _is_updated(self, where: str) -> bool:
        """Run an update once; return False if another writer kept it from committing."""
        try:
            self._open.change("update", where)
        except Exception as error:
            if not _CONFLICT.search(f"{type(error).__name__} {error}"):
                raise
            return False
        return True

    def fingerprint(self, _: Mapping[str, Any]) -> Answer:
        """Rows, sum of v2, and a checksum over whole rows in no order."""
        checksum = f"sum(pmod(xxhash64({', '.join(NAMES)}), 1000000007L))"
        return {
            "fingerprint": [
                int(value)
                for value in self._open.current()
                .selectExpr("count(*)", "sum(v2)", checksum)
                .collect()[0]
            ]
        }

    def drop(self, _: Mapping[str, Any]) -> Answer:
        self._open.drop()
        self.system = None
        return self.rest({})

    def rest(self, _: Mapping[str, Any]) -> Answer:
        """Give back memory, and the disk of shuffles that nobody will read again.

        Both happen when the JVM collects garbage.
        """
        self.spark.sparkContext._jvm.java.lang.System.gc()  # type: ignore[union-attr]  # there is one while the session is open
        time.sleep(0.3)
        return {}

    @property
    def _open(self) -> System:
        if self.system is None:
            raise RuntimeError("the table does not exist yet; send 'bootstrap' first")
        return self.system

    def _staged(self, path: str) -> DataFrame:
        return self.spark.read.schema(SCHEMA).parquet(path)


def open_session(name: str, folder: Path, memory: str, cores: str) -> SparkSession:
    settings = {
        "spark.driver.memory": memory,
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "spark-local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if name in SYSTEMS:
        settings |= SYSTEMS[name].settings(str(folder))
    builder = SparkSession.builder.master(f"local[{cores}]").appName(f"bench {name}")
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def own_stdout() -> TextIO:
    """Return standard output, for answers alone.

    Whatever else is printed in this process, by the JVM too, goes to standard error.
    """
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def answer(stream: TextIO, content: Answer) -> None:
    stream.write(json.dumps(content) + "\n")
    stream.flush()


def main() -> int:
    name, folder, memory, cores = sys.argv[1:]
    stream = own_stdout()
    spark = open_session(name, Path(folder), memory, cores)
    worker = Worker(name, spark, Path(folder))
    answer(stream, {"spark": spark.version})
    for line in sys.stdin:
        try:
            answer(stream, worker.do(json.loads(line)))
        except Exception as error:  # noqa: BLE001  whatever it was, the orchestrator decides what becomes of it
            traceback.print_exc()
            answer(stream, {"error": f"{type(error).__name__}: {str(error).strip()[:500]}"})
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
