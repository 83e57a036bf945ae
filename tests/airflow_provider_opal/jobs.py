"""A replacement for Spark: the jobs of operators, done by opal_lake in this process.

Its tables have one schema. As a script it stands for spark-submit.
"""

import json
import os
import sys
from collections.abc import Mapping
from glob import glob
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.engine.results import keep_result
from opal_lake.operations.job_spec import JobSpec
from opal_lake.result import JobResult
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, create_on

SCHEMA = pa.schema([("id", pa.string()), ("at", pa.int64()), ("day", pa.string())])
BAD = "BAD-1"


def create_table(uri: str) -> Table:
    """Create a table whose jobs can be done here."""
    return create_on(open_storage(uri), plan_spec(SCHEMA, TableLayout(keys=["id"], delta="at")))


def do_job(spec: JobSpec[Any]) -> None:
    """Leave what Spark would have left: the commit, or the result of a consumer."""
    table, given = Table.open(spec.table), vars(spec.operation)
    if spec.operation.name == "ingest":
        rows = pa.Table.from_pylist(_source_rows(given["source"]), schema=SCHEMA)
        named = {name: given[name] for name in ("metadata", "partition_key", "replaces")}
        table.ingest(rows, token=spec.token, **named)
    elif spec.operation.name == "metagen":
        spec.job.run(table)
    elif spec.operation.name == "consume":
        _call(table, given)
        done = JobResult(
            operation="consume", table=spec.table, token=spec.token, version=given["version"]
        )
        keep_result(table.storage, done)
    else:
        raise ValueError(f"{spec.operation.name} needs Spark")


def _source_rows(source: Mapping[str, Any]) -> list[dict[str, Any]]:
    paths = [path for pattern in source["files"]["paths"] for path in sorted(glob(pattern))]
    return [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]


def _call(table: Table, given: Mapping[str, Any]) -> None:
    """Call the function of a consumer by partition."""
    key, version = given["partition_key"], given["version"]
    rows = table.read(version, partition_key=key, net=True).to_pylist()
    change = SimpleNamespace(
        rows=SimpleNamespace(collect=lambda: rows),
        partition_key=key,
        version=version,
        arguments=given["arguments"],
    )
    module, _, function = given["function"].partition(":")
    getattr(import_module(module), function)(change)


if __name__ == "__main__":
    sys.path.insert(0, os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    do_job(JobSpec.from_json(sys.argv[sys.argv.index("--spec") + 1]))
