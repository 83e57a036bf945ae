"""An upsert on executors that die or dawdle.

    python -m tests.opal_spark.lossy MASTER FOLDER METADATA LOSS AT

At its AT-th write within a task, the store kills the Python worker that writes (`worker`) or the
executor's JVM (`executor`), once. Or it makes that write so slow that Spark starts the task a
second time elsewhere (`slow`).
"""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from opal_lake.storage import Storage, open_storage
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.table import table_on
from opal_spark import OpalTable
from tests.opal_lake.shop import Row, latest
from tests.opal_spark.build import content, create, frame

FIRST: list[Row] = [(f"k{key}", 1, key) for key in range(60)]
SECOND: list[Row] = [(f"k{key}", 2, None if key % 7 == 0 else key + 1) for key in range(30, 90)]
SLOW_S = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LossyStore(ForwardingStore):
    """A store that counts writes below `marks`, which all processes share.

    The writer of the mark `at` is lost.
    """

    inner: Storage
    marks: Path
    loss: str
    at: int

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        from pyspark import TaskContext

        if TaskContext.get() is None:
            return self.inner.put_if_absent(path, data)
        mine = self._next_mark()
        if mine == self.at and self.at % 2:
            self._lose()  # before it is written; at even places after
        done = self.inner.put_if_absent(path, data)
        if mine == self.at:
            self._lose()
        return done

    def _next_mark(self) -> int:
        for number in range(1, 1000):
            try:
                (self.marks / str(number)).open("x").close()
            except FileExistsError:
                continue
            return number
        raise AssertionError("too many writes")

    def _lose(self) -> None:
        if self.loss == "slow":
            time.sleep(SLOW_S)
        elif self.loss == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            os.kill(jvm_above(os.getpid()), signal.SIGKILL)
            time.sleep(60)  # until it takes this process with it


def jvm_above(pid: int) -> int:
    """Return the executor: the nearest ancestor that runs Java."""
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def main(master: str, folder: Path, metadata: str, loss: str, at: int) -> None:
    (folder / "marks").mkdir(parents=True)
    session = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
    )
    for name, value in {
        "spark.speculation": loss == "slow",
        "spark.speculation.quantile": 0.1,
        "spark.speculation.minTaskRuntime": "1s",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.sql.shuffle.partitions": 4,
    }.items():
        session = session.config(name, value)
    spark = session.getOrCreate()
    create(spark, folder / "table", key_store_fan_in=2).ingest(
        frame(spark, FIRST, 2), metadata="inline"
    )
    store = LossyStore(
        inner=open_storage(str(folder / "table")), marks=folder / "marks", loss=loss, at=at
    )
    table = OpalTable.on(spark, table_on(store))
    table.ingest(frame(spark, SECOND, 3), metadata=metadata)
    if metadata == "batch":
        table.metagen()
    assert len(list(store.marks.iterdir())) >= at, "nothing was lost"
    sound = OpalTable.for_path(spark, str(folder / "table"))
    assert content(sound.read()) == latest([FIRST, SECOND])
    assert sound.check() == []
    print("sound after", len(list(store.marks.iterdir())), "writes")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
