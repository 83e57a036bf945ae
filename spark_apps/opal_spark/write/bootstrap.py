"""A bootstrap on Spark: the batches of a source one after the other, each an ingest, then one MetaGen. Any of it may be done already."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from opal_lake.errors import FormatError, InvalidInputError
from opal_lake.job.job import JobResult
from opal_lake.job.source import PACKAGES
from opal_lake.spec.table_spec import TableSpec
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table
from opal_lake.write import bootstrap
from opal_lake.write.bootstrap import OPERATION, BootstrapPlan, SourceTable
from opal_lake.write.ingest_job import IngestOptions, check_on_bad_rows, ingest
from opal_spark.engine.executor import on_spark
from opal_spark.sources import source_rows
from opal_spark.sources.fitting import fitting
from opal_spark.sources.tables import batch_rows, is_below


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """Of one source into one table."""

    spark: SparkSession
    table: Table
    source: SourceTable
    on_bad_rows: str = "fail"

    @property
    def storage(self) -> Storage:
        return self.table.storage

    def run(self, look: Callable[[], BootstrapPlan]) -> JobResult:
        """What is left of it; `look` makes the plan, if no earlier try has fixed one."""
        check_on_bad_rows(self.on_bad_rows)
        name = self.source.name
        if (earlier := bootstrap.read_result(self.storage, name)) is not None:
            return earlier
        plan = bootstrap.read_plan(self.storage, name) or bootstrap.fix_plan(self.storage, name, look())
        self._check(plan)
        results = bootstrap.done_batches(self.storage, name)
        counts: Counter[str] = Counter(batches_done=0, batches_skipped=0)
        notes: list[str] = []
        for batch in range(len(plan.batches)):
            result = results.get(batch) or self._ingest(plan, batch)
            counts["batches_skipped" if batch in results or result.repeated else "batches_done"] += 1
            counts.update({part: result.counts.get(part, 0) for part in ("rows", "files", "bytes", "rejected")})
            notes += result.notes
        version = self.table.snapshot_at().version
        if plan.batches:
            processed = on_spark(self.spark, self.table).metagen(token=plan.metagen_token)
            version, notes = processed.version or version, [*notes, *processed.notes]
        done = JobResult(operation=OPERATION, table=self.table.uri, version=version, counts=dict(counts), notes=tuple(dict.fromkeys(notes)))
        bootstrap.keep_result(self.storage, name, done)
        return done

    def _check(self, plan: BootstrapPlan) -> None:
        """The plan lies in the table's folder: it may name files of this source only."""
        theirs, ours = plan.source, self.source
        if (_plain(theirs.location), theirs.format) != (_plain(ours.location), ours.format) or ours.version not in (None, theirs.version):
            raise FormatError(
                f"{self.table.uri}: the plan of this bootstrap is for {theirs.location}, not for {ours.location}; trust nothing in it"
            )
        if ours.format in PACKAGES:
            return  # its files are looked for among those of the source
        for file in (file for batch in plan.batches for file in batch):
            if not is_below(file.path, ours.location):
                shown = f"{file.path!r}, which is not below {ours.location}"
                raise FormatError(f"{self.table.uri}: the plan of this bootstrap names {shown}; trust nothing in it")

    def _ingest(self, plan: BootstrapPlan, batch: int) -> JobResult:
        options = IngestOptions(token=plan.token(batch), on_bad_rows=self.on_bad_rows, expected_rows=plan.rows(batch))
        result = ingest(on_spark(self.spark, self.table), partial(self._rows, plan, batch), options)
        bootstrap.keep_batch(self.storage, self.source.name, batch, replace(result, repeated=False))
        return result

    def _rows(self, plan: BootstrapPlan, batch: int, spec: TableSpec) -> DataFrame:
        return fitting(source_rows(self.spark, batch_rows(self.spark, plan, batch), spec), spec)


def source_table(location: str, format: str, version: int | None) -> SourceTable:
    """Local paths in full, so that the same source has one name."""
    is_path = format != "iceberg" or "/" in location
    return SourceTable(
        location=os.path.abspath(location) if is_path and "://" not in location else location, format=format, version=version
    )


def refuse_overlap(source: SourceTable, uri: str) -> None:
    """A table that lies within its source would be read as a part of it."""
    ours, theirs = (_plain(place) + "/" for place in (uri, source.location))
    if ours.startswith(theirs) or theirs.startswith(ours):
        raise InvalidInputError(
            f"the table {uri} and its source {source.location} must not contain one another; choose another place for the table"
        )


def _plain(place: str) -> str:
    scheme, _, rest = place.rpartition("://")
    if scheme in ("", "file"):
        return os.path.realpath(rest)
    return f"s3://{rest.rstrip('/')}" if scheme.startswith("s3") else place.rstrip("/")
