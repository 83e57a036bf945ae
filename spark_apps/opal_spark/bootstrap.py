"""A bootstrap on Spark: the batches of a source one after the other, each an ingest, then one MetaGen. Any of it may be done already."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from opal_lake import bootstrap
from opal_lake.bootstrap import OPERATION, BootstrapPlan, SourceTable
from opal_lake.errors import InvalidInputError
from opal_lake.ingest_job import check_on_bad_rows
from opal_lake.job import JobResult
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table
from opal_spark.ingest import ingest
from opal_spark.metagen import metagen
from opal_spark.sources import source_rows
from opal_spark.sources.tables import batch_rows


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
            processed = metagen(self.spark, self.table, plan.metagen_token)
            version, notes = processed.version or version, [*notes, *processed.notes]
        done = JobResult(operation=OPERATION, table=self.table.uri, version=version, counts=dict(counts), notes=tuple(dict.fromkeys(notes)))
        bootstrap.keep_result(self.storage, name, done)
        return done

    def _ingest(self, plan: BootstrapPlan, batch: int) -> JobResult:
        run = self.table.start_ingest(plan.token(batch), self.on_bad_rows)
        if isinstance(run, JobResult):
            result = run
        else:
            run = replace(run, expected_rows=plan.rows(batch))
            result = ingest(self.table, source_rows(self.spark, batch_rows(self.spark, plan, batch), run.base.spec), run)
        bootstrap.keep_batch(self.storage, self.source.name, batch, replace(result, repeated=False))
        return result


def source_table(place: str, format: str, version: int | None) -> SourceTable:
    """Local paths in full, so that the same source has one name."""
    is_path = format != "iceberg" or "/" in place
    return SourceTable(place=os.path.abspath(place) if is_path and "://" not in place else place, format=format, version=version)


def refuse_overlap(source: SourceTable, uri: str) -> None:
    """A table that lies within its source would be read as a part of it."""
    ours, theirs = (_plain(place) + "/" for place in (uri, source.place))
    if ours.startswith(theirs) or theirs.startswith(ours):
        raise InvalidInputError(f"the table {uri} and its source {source.place} lie within one another; choose another place for the table")


def _plain(place: str) -> str:
    scheme, _, rest = place.rpartition("://")
    if scheme in ("", "file"):
        return os.path.realpath(rest)
    return f"s3://{rest.rstrip('/')}" if scheme.startswith("s3") else place.rstrip("/")
