"""Folders of a test: filled, mutated, and read as rows."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import fastavro
from pyspark.sql import SparkSession

from opal_lake.operations.mutate import Mutate
from opal_lake.result import JobResult
from opal_spark.mutate import mutate
from tests.fixtures_spark import need_spark_parts


def put(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def put_avro(path: Path, types: Mapping[str, str], rows: Sequence[Mapping[str, object]]) -> Path:
    """Fields that may be null, of Avro's own types."""
    need_spark_parts()
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = {
        "type": "record",
        "name": "row",
        "fields": [{"name": name, "type": ["null", kind]} for name, kind in types.items()],
    }
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows)
    return path


def run(spark: SparkSession, folder: Path, **arguments: object) -> JobResult:
    """Merge the increments in `incr` into `master`."""
    given = {"increments": [str(folder / "incr")], **arguments}
    return mutate(spark, str(folder / "master"), Mutate(**given))


def cells(folder: Path, *, header: bool, delimiter: str = ",") -> list[list[str]]:
    """Return the cells of all files of a master of CSV, sorted."""
    rows = []
    for path in sorted((folder / "master").rglob("*")):
        if path.is_file() and not path.name.startswith(("_", ".")):
            with open(path, encoding="utf-8", newline="") as file:
                rows += list(csv.reader(file, delimiter=delimiter))[1 if header else 0 :]
    return sorted(rows)
