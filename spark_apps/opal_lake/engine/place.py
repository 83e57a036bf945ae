"""A place where a table is, or is to be made, as operations get it that need no table."""

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from opal_lake.definition.table_spec import TableLayout
from opal_lake.engine.open_table import OpenTable
from opal_lake.result import JobResult
from opal_lake.source import Files, Jdbc

if TYPE_CHECKING:
    from opal_lake.operations.mutate import Mutate
    from opal_lake.write.bootstrap import SourceTable
    from opal_lake.write.bootstrap_job import SourceReader


class SeenPlace(Protocol):
    """A place as a process without an engine sees it."""

    @property
    def uri(self) -> str: ...

    def open(self) -> OpenTable:
        """Open the table; NotFoundError when there is none."""
        ...

    def lacks(self, path: str) -> bool:
        """Return whether an engine certainly finds no file at a path or pattern of a source.

        False where this process cannot know.
        """
        ...


class Place(Protocol):
    """A URI, and the engine that works on the table there."""

    @property
    def uri(self) -> str: ...

    def open(self) -> OpenTable:
        """Open the table; NotFoundError when there is none."""
        ...

    def create(self, columns: pa.Schema, layout: TableLayout) -> OpenTable:
        """Create a table; TableExistsError when there is one."""
        ...

    def sql_columns(self, schema: str) -> pa.Schema:
        """Return the columns that a schema has, written as in CREATE TABLE."""
        ...

    def source_columns(self, source: Files | Jdbc, delta: str) -> pa.Schema:
        """Return the columns of a source; `delta` is one that its files may make."""
        ...

    def source_reader(
        self, source: "SourceTable", columns: pa.Schema | None, batch_bytes: int
    ) -> "SourceReader":
        """Return what reads a table of another format; `columns` are those that were asked for."""
        ...

    def merge(self, job: "Mutate") -> JobResult:
        """Merge files into the folder of files that is at the place."""
        ...
