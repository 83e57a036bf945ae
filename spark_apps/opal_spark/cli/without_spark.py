"""Jobs of the command line in this process, where Spark is not installed.

Those that read rows of other places, or write rows elsewhere, need Spark.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from opal_lake.cli.shown_rows import shown_result
from opal_lake.definition.sql_schema import arrow_of_sql
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.engine.in_process import InProcess
from opal_lake.errors import InvalidInputError
from opal_lake.operations.compact import Compact
from opal_lake.operations.create import Create
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.look import Check
from opal_lake.operations.maintain import Maintain
from opal_lake.operations.metagen import MetaGen
from opal_lake.operations.read import ShowRows
from opal_lake.operations.rebuild_key_store import RebuildKeyStore
from opal_lake.operations.zorder import ZOrder
from opal_lake.result import JobResult
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, create_on

_JOBS = (Create, MetaGen, Compact, ZOrder, Maintain, RebuildKeyStore)


def run_without_spark(spec: JobSpec[Any], options: Mapping[str, str], command: str) -> JobResult:
    """Run the operation of a spec; InvalidInputError for one that needs Spark."""
    started_s = time.monotonic()
    place = LocalPlace(uri=spec.table, options=options, command=command)
    operation = spec.operation
    if isinstance(operation, ShowRows):
        if operation.to is not None:
            place.refuse("--to")
        result = _show_rows(place.open(), operation, spec.token)
    elif isinstance(operation, _JOBS):
        result = spec.job.run(place.open() if operation.needs_table else place)
    elif isinstance(operation, Check):
        place.refuse("--spark")
    else:
        place.refuse()
    return result if result.repeated else result.timed(time.monotonic() - started_s)


def _show_rows(table: "Table[pa.Table]", job: ShowRows, token: str | None) -> JobResult:
    view = job.view(table)
    # One row more shows whether there are more
    rows = InProcess().rows(view, limit=job.shown_rows + 1)
    result = JobResult(
        operation="read", table=table.uri, version=view.snapshot.version, token=token
    )
    return shown_result(result, rows, job.shown_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlace:
    """A URI where a table is, or is to be made, for this process to work on."""

    uri: str
    options: Mapping[str, str]
    command: str

    def open(self) -> "Table[pa.Table]":
        """Open the table; NotFoundError when there is none."""
        return Table.open(self.uri, self.options)

    def create(self, columns: pa.Schema, layout: TableLayout) -> "Table[pa.Table]":
        """Create a table; TableExistsError when there is one."""
        return create_on(open_storage(self.uri, self.options), plan_spec(columns, layout))

    def sql_columns(self, schema: str) -> pa.Schema:
        """Return the columns that a schema has, written as in CREATE TABLE."""
        return arrow_of_sql(schema)

    def source_columns(self, *_: object) -> NoReturn:
        """Refuse: Spark reads sources."""
        self.refuse("--like")

    def source_reader(self, *_: object) -> NoReturn:
        """Refuse: Spark reads tables of other formats."""
        self.refuse()

    def merge(self, _: object) -> NoReturn:
        """Refuse: Spark merges folders."""
        self.refuse()

    def refuse(self, option: str = "") -> NoReturn:
        """Raise InvalidInputError for what needs Spark."""
        what = f"opal {self.command} {option}".rstrip()
        raise InvalidInputError(
            f"{what} needs Spark, which is not installed: pip install 'opal-lake[spark]'"
        )
