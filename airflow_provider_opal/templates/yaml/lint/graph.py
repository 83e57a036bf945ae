"""What holds between pipelines: one writer a table, no circles, and nobody waits for an event that never wakes them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from airflow_provider_opal.assets import asset_uri
from airflow_provider_opal.templates.yaml.files import YamlFile
from airflow_provider_opal.templates.yaml.models.version_1 import DagModel, TableSchedule
from airflow_provider_opal.templates.yaml.text.problem import Keys, Position, Problem, listed


@dataclass(frozen=True, slots=True)
class TableOf:
    """A table as somebody names it. Two names of one table have one `identity`."""

    name: str
    opal_conn_id: str
    resolved: str | None = None

    @property
    def uri(self) -> str:
        return asset_uri(self.name, self.opal_conn_id)

    @property
    def identity(self) -> str:
        if self.resolved is None and "://" not in self.name and not self.name.startswith("/"):
            return f"{self.opal_conn_id}:{'/'.join(filter(None, self.name.replace('.', '/').split('/')))}"
        return re.sub(
            r"^s3[an]://", "s3://", re.sub(r"^file:/+", "/", self.resolved or self.name)
        ).rstrip("/")


@dataclass(frozen=True)
class Pipeline:
    """What a DAG writes and what it waits for."""

    dag_id: str
    file: str
    position: Position
    at: Keys
    writes: tuple[TableOf, ...] = ()
    waits: tuple[TableOf, ...] = ()
    keyed: bool = False
    plain: bool = False
    positions: Mapping[str, Position] = field(default_factory=dict)

    @cached_property
    def written(self) -> frozenset[str]:
        return frozenset(table.identity for table in self.writes)

    @cached_property
    def awaited(self) -> frozenset[str]:
        return frozenset(table.identity for table in self.waits)

    def problem(self, what: str, *keys: str) -> Problem:
        """A finding at the DAG, or at its table or schedule."""
        return Problem(
            self.file,
            self.positions.get(keys[0], self.position) if keys else self.position,
            (*self.at, *keys),
            what,
        )

    def shown(self) -> str:
        return f"{self.dag_id!r} ({self.file}:{self.position.line})"


def pipelines_of(file: YamlFile) -> Iterator[Pipeline]:
    """Those of a YAML file."""
    for dag_id, dag in file.dags.items():
        waits = (_awaited(dag.schedule, dag),) if isinstance(dag.schedule, TableSchedule) else ()
        yield Pipeline(
            dag_id=dag_id,
            file=file.name,
            position=file.position(dag_id),
            at=("dags", dag_id),
            writes=(TableOf(dag.table_name, dag.opal_conn_id),),
            waits=waits,
            keyed=dag.schedule is not None,
            positions={
                name: file.document.position(("dags", dag_id, name))
                for name in ("table", "schedule")
            },
        )


def _awaited(schedule: TableSchedule, dag: DagModel) -> TableOf:
    return TableOf(schedule.table, schedule.opal_conn_id or dag.opal_conn_id)


def between(pipelines: Sequence[Pipeline]) -> Iterator[Problem]:
    """All findings."""
    yield from _twice_written(pipelines)
    yield from _circles(pipelines)
    yield from _never_woken(pipelines)
    yield from _named_otherwise(pipelines)


def _twice_written(pipelines: Iterable[Pipeline]) -> Iterator[Problem]:
    first: dict[str, Pipeline] = {}
    for pipeline in pipelines:
        for table in pipeline.writes:
            other = first.setdefault(table.identity, pipeline)
            if other.dag_id != pipeline.dag_id:
                what = f"table {table.name!r} is written by {other.shown()} too; let one pipeline write it, or name another table"
                yield pipeline.problem(what, "table")


def _circles(pipelines: Sequence[Pipeline]) -> Iterator[Problem]:
    wakes = {
        number: [after for after, other in enumerate(pipelines) if pipeline.written & other.awaited]
        for number, pipeline in enumerate(pipelines)
    }
    reported: set[int] = set()
    for number, pipeline in enumerate(pipelines):
        circle = None if number in reported else _way_back(number, wakes)
        if circle:
            reported |= set(circle)
            names = " -> ".join(pipelines[member].dag_id for member in [*circle, number])
            yield pipeline.problem(
                f"pipelines trigger each other in a cycle: {names}; give one of them a schedule of its own",
                "schedule",
            )


def _way_back(start: int, wakes: Mapping[int, Sequence[int]]) -> list[int] | None:
    """The shortest way from a pipeline to itself."""
    came_from: dict[int, int] = {}
    queue = [start]
    for here in queue:
        for after in wakes[here]:
            if after == start:
                way = [here]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            if after not in came_from:
                came_from[after] = here
                queue.append(after)
    return None


def _never_woken(pipelines: Sequence[Pipeline]) -> Iterator[Problem]:
    keyed = {identity for pipeline in pipelines if pipeline.keyed for identity in pipeline.written}
    for pipeline in pipelines:
        tables = (
            [table for table in pipeline.waits if table.identity in keyed] if pipeline.plain else []
        )
        if tables:
            names = listed(table.name for table in tables)
            assets = " & ".join(f"opal_asset({table.name!r})" for table in tables)
            yield pipeline.problem(
                f"a plain asset schedule is never triggered by events with partition keys, as those of {names}; "
                f"write schedule=PartitionedAssetTimetable(assets={assets})"
            )


def _named_otherwise(pipelines: Sequence[Pipeline]) -> Iterator[Problem]:
    """One table has one asset for each way to write its name, and Airflow compares the assets."""
    writers = {table.identity: table for pipeline in pipelines for table in pipeline.writes}
    for pipeline in pipelines:
        for table in pipeline.waits:
            writer = writers.get(table.identity)
            if writer is not None and writer.uri != table.uri:
                conn = (
                    f" of connection {writer.opal_conn_id!r}"
                    if writer.opal_conn_id != table.opal_conn_id
                    else ""
                )
                what = f"{table.name!r} is written as {writer.name!r}{conn}, and its events have that name; write it here in the same way"
                yield pipeline.problem(what, "schedule", "table")
