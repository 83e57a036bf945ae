"""A table's story on local Spark: a shop's change stream in three batches, step by step.

python -m tests.demo.table [FOLDER]
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from opal_lake.cli.render import Column, Style, text_table
from opal_spark.cli.launch import launched
from opal_spark.table import OpalTable

SHOWN = ("order_id", "customer", "total", "status", "updated_at")

MORNING = [
    ("A-1", "mira", "40.00", "placed", "I", "2026-11-02 09:00"),
    ("A-2", "jon", "15.50", "placed", "I", "2026-11-02 09:05"),
    ("A-3", "ada", "99.90", "placed", "I", "2026-11-02 09:10"),
]
NOON = [
    ("A-1", "mira", "40.00", "paid", "U", "2026-11-02 11:30"),
    ("A-4", "jon", "7.25", "placed", "I", "2026-11-02 11:45"),
    ("A-3", "ada", "89.90", "placed", "U", "2026-11-02 12:00"),
]
EVENING = [
    ("A-2", "jon", "15.50", "cancelled", "D", "2026-11-02 17:10"),
    ("A-4", "jon", "7.25", "paid", "U", "2026-11-02 17:20"),
    # Late: older than the payment that the table already has
    ("A-1", "mira", "40.00", "packed", "U", "2026-11-02 10:15"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The table of the story, and the style of its output."""

    spark: SparkSession
    path: str
    style: Style

    def say(self, line: str) -> None:
        print(f"\n{self.style.strong('>')} {self.style.strong(line)}\n", flush=True)

    def show(self, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
        first = rows[0] if rows else {}
        columns = [
            Column(key=name, title=name, right=isinstance(first.get(name), int)) for name in names
        ]
        for line in text_table(columns, rows, self.style):
            print(f"    {line}", flush=True)

    def show_rows(self, rows: DataFrame) -> None:
        lines = [row.asDict() for row in rows.orderBy("order_id").collect()]
        for line in lines:
            line["updated_at"] = line["updated_at"].strftime("%H:%M")
        self.show(lines, SHOWN)

    def stream(self, changes: Sequence[tuple[str, ...]]) -> DataFrame:
        rows = self.spark.createDataFrame(
            changes,
            "order_id STRING, customer STRING, total STRING, status STRING, op STRING, at STRING",
        )
        return rows.selectExpr(
            "order_id",
            "customer",
            "CAST(total AS DECIMAL(8,2)) AS total",
            "status",
            "op",
            "CAST(at AS TIMESTAMP) AS updated_at",
        )


def run(story: Story) -> None:
    """Create the table, feed it, and read it now and as of earlier times."""
    table = _create(story)
    versions = {}
    for name, changes in (("morning", MORNING), ("noon", NOON), ("evening", EVENING)):
        _feed(story, table, name, changes)
        versions[name] = table.snapshot_at().version
    for name in ("morning", "noon"):
        story.say(
            f"Read as of the {name}'s batch: table.read(version={versions[name]}). "
            "Later changes are not in it."
        )
        story.show_rows(table.read(version=versions[name]))
    story.say(
        'Read as of an event time: table.read(event_time="2026-11-02T11:00:00Z"). '
        "The late row A-1 has its status of 11:00, although it was ingested in the evening."
    )
    story.show_rows(table.read(event_time="2026-11-02T11:00:00Z"))
    story.say(
        "History: table.history(). Each batch has two commits: an ingest, and a MetaGen that "
        "makes its rows visible."
    )
    story.show(
        [_commit(row) for row in reversed(table.history())],
        ("version", "operation", "rows", "updates", "deletes", "late"),
    )
    problems = table.check()
    story.say(
        "Check: table.check() has read every file and every row. "
        f"It found {len(problems)} problems."
    )


def _create(story: Story) -> OpalTable:
    story.say('Create a table: keys=["order_id"], delta="updated_at", deletes="op = \'D\'".')
    table = OpalTable.create(
        story.spark,
        story.path,
        story.stream(MORNING).schema,
        keys=["order_id"],
        delta="updated_at",
        deletes="op = 'D'",
    )
    print(f"    {table.uri}")
    return table


def _feed(story: Story, table: OpalTable, name: str, changes: Sequence[tuple[str, ...]]) -> None:
    ingested = table.ingest(story.stream(changes), token=f"shop-{name}-ingest")
    counts = table.metagen(token=f"shop-{name}-metagen").counts
    story.say(
        f"The {name}'s changes: {ingested.counts['rows']} rows were ingested. MetaGen found "
        f"updates: {counts['updates']}, deletes: {counts['deletes']}, late: {counts['late']}. "
        "The table now:"
    )
    story.show_rows(table.read())


def _commit(row: dict[str, Any]) -> dict[str, Any]:
    counts = row["counts"]
    commit = {"version": row["version"], "operation": row["operation"]}
    for name in ("rows", "updates", "deletes", "late"):
        commit[name] = counts.get(name)
    return commit


@contextmanager
def _folder(asked: str | None) -> Iterator[Path]:
    """Give the folder of the table: the asked one, or a temporary one."""
    if asked is not None:
        yield Path(asked)
        return
    temporary = Path(tempfile.mkdtemp(prefix="opal-demo-"))
    try:
        yield temporary / "orders"
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def main() -> int:
    """Run the demo in a new folder, which is deleted afterwards unless it was named."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo.table", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", help="keep the table in this folder; by default it is deleted"
    )
    asked = parser.parse_args().folder
    conf = {
        "spark.master": "local[2]",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    style = Style.of(sys.stdout)
    print("Starting Spark ...", flush=True)
    with _folder(asked) as folder, launched("opal-demo", conf, verbose=False) as spark:
        run(Story(spark=spark, path=str(folder), style=style))
    advice = "The table was deleted. To keep it: make demo STORY=table ARGS=FOLDER"
    if asked:
        advice = f"The table is in {asked}: try `opal describe {asked}`."
    print(f"\n    {advice}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
