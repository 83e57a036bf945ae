"""Rules between pipelines.

A table has one writer, pipelines do not trigger each other in a cycle, and none waits for an event
that never triggers it.
"""

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
    """A table under one of its names. All names of a table have the same `identity`."""

    name: str
    opal_conn_id: str
    resolved: str | None = None

    @property
    def uri(self) -> str:
        return asset_uri(self.name, self.opal_conn_id)

    @property
    def identity(self) -> str:
        is_relative = "://" not in self.name and not self.name.startswith("/")
        if self.resolved is None and is_relative:
            names = [name for name in self.name.replace(".", "/").split("/") if name]
            return f"{self.opal_conn_id}:{'/'.join(names)}"
        uri = re.sub(r"^file:/+", "/", self.resolved or self.name)
        return re.sub(r"^s3[an]://", "s3://", uri).rstrip("/")


@dataclass(frozen=True)
class Pipeline:
    """A DAG with the tables that it writes and waits for.

    With `keyed` its runs have partition keys. With `plain` it has an asset schedule that events
    with partition keys do not trigger.
    """

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
        """Return a finding at the DAG, or at its table or schedule."""
        position = self.position
        if keys:
            position = self.positions.get(keys[0], position)
        return Problem(self.file, position, (*self.at, *keys), what)

    def shown(self) -> str:
        return f"{self.dag_id!r} ({self.file}:{self.position.line})"


def pipelines_of(file: YamlFile) -> Iterator[Pipeline]:
    """Yield the pipelines of a YAML file."""
    for dag_id, dag in file.dags.items():
        waits: tuple[TableOf, ...] = ()
        if isinstance(dag.schedule, TableSchedule):
            waits = (_awaited(dag.schedule, dag),)
        positions = {}
        for name in ("table", "schedule"):
            positions[name] = file.document.position(("dags", dag_id, name))
        yield Pipeline(
            dag_id=dag_id,
            file=file.name,
            position=file.position(dag_id),
            at=("dags", dag_id),
            writes=(TableOf(dag.table_name, dag.opal_conn_id),),
            waits=waits,
            keyed=dag.schedule is not None,
            positions=positions,
        )


def _awaited(schedule: TableSchedule, dag: DagModel) -> TableOf:
    return TableOf(schedule.table, schedule.opal_conn_id or dag.opal_conn_id)


def between(pipelines: Sequence[Pipeline]) -> Iterator[Problem]:
    """Yield all findings between pipelines."""
    yield from _twice_written(pipelines)
    yield from _cycles(pipelines)
    yield from _never_woken(pipelines)
    yield from _named_otherwise(pipelines)


def _twice_written(pipelines: Iterable[Pipeline]) -> Iterator[Problem]:
    first: dict[str, Pipeline] = {}
    for pipeline in pipelines:
        for table in pipeline.writes:
            # Several tasks of one DAG may write the same table
            other = first.setdefault(table.identity, pipeline)
            if other.dag_id != pipeline.dag_id:
                what = (
                    f"table {table.name!r} is written by {other.shown()} too; "
                    "let one pipeline write it, or name another table"
                )
                yield pipeline.problem(what, "table")


def _cycles(pipelines: Sequence[Pipeline]) -> Iterator[Problem]:
    # By the number of a pipeline: the numbers of the pipelines that it triggers
    triggered: dict[int, list[int]] = {}
    for number, pipeline in enumerate(pipelines):
        triggered[number] = []
        for other_number, other in enumerate(pipelines):
            if pipeline.written & other.awaited:
                triggered[number].append(other_number)
    reported: set[int] = set()
    for number, pipeline in enumerate(pipelines):
        cycle = None if number in reported else _shortest_cycle(number, triggered)
        if cycle:
            reported |= set(cycle)
            names = " -> ".join(pipelines[member].dag_id for member in [*cycle, number])
            what = (
                f"pipelines trigger each other in a cycle: {names}; "
                "give one of them a schedule of its own"
            )
            yield pipeline.problem(what, "schedule")


def _shortest_cycle(start: int, triggered: Mapping[int, Sequence[int]]) -> list[int] | None:
    """Return the shortest path from a pipeline to itself, searched breadth first."""
    came_from: dict[int, int] = {}
    queue = [start]
    for number in queue:  # it grows meanwhile
        for following in triggered[number]:
            if following == start:
                path = [number]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if following not in came_from:
                came_from[following] = number
                queue.append(following)
    return None


def _never_woken(pipelines: Sequence[Pipeline]) -> Iterator[Problem]:
    keyed = set[str]()
    for pipeline in pipelines:
        if pipeline.keyed:
            keyed |= pipeline.written
    for pipeline in pipelines:
        if not pipeline.plain:
            continue
        tables = [table for table in pipeline.waits if table.identity in keyed]
        if tables:
            names = listed(table.name for table in tables)
            assets = " & ".join(f"opal_asset({table.name!r})" for table in tables)
            yield pipeline.problem(
                "a plain asset schedule is never triggered by events with partition keys, "
                f"such as those of {names}; "
                f"write schedule=PartitionedAssetTimetable(assets={assets})"
            )


def _named_otherwise(pipelines: Sequence[Pipeline]) -> Iterator[Problem]:
    """Yield schedules that name an awaited table otherwise than its writer does.

    Each name of a table has its own asset, so the events would not start the waiting pipeline.
    """
    writers = {}
    for pipeline in pipelines:
        for table in pipeline.writes:
            writers[table.identity] = table
    for pipeline in pipelines:
        for table in pipeline.waits:
            writer = writers.get(table.identity)
            if writer is not None and writer.uri != table.uri:
                name = repr(writer.name)
                if writer.opal_conn_id != table.opal_conn_id:
                    name += f" of connection {writer.opal_conn_id!r}"
                what = (
                    f"another pipeline writes {table.name!r} as {name}, and the table's events "
                    "have that name; use the same name here"
                )
                yield pipeline.problem(what, "schedule", "table")
