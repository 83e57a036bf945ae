"""A place: a URI where a table exists or will be made."""

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
    """A URI, and what a process without an engine can do there."""

    @property
    def uri(self) -> str: ...

    def open(self) -> OpenTable:
        """Open the table; NotFoundError if it does not exist."""
        ...

    def lacks(self, path: str) -> bool:
        """Return whether there is certainly no file of a source at a path.

        False if this process cannot find that out.
        """
        ...


class Place(Protocol):
    """A URI, and the engine that works on the table there."""

    @property
    def uri(self) -> str: ...

    def open(self) -> OpenTable:
        """Open the table; NotFoundError if it does not exist."""
        ...

    def create(self, columns: pa.Schema, layout: TableLayout) -> OpenTable:
        """Create a table; TableExistsError if one exists."""
        ...

    def sql_columns(self, schema: str) -> pa.Schema:
        """Return the columns of a schema that is written as in CREATE TABLE."""
        ...

    def source_columns(self, source: Files | Jdbc, delta: str) -> pa.Schema:
        """Return the columns of a source; `delta` may name a column made from file names."""
        ...

    def source_reader(
        self, source: "SourceTable", columns: pa.Schema | None, batch_bytes: int
    ) -> "SourceReader":
        """Return a reader of a table in another format; `columns` are requested columns."""
        ...

    def merge(self, job: "Mutate") -> JobResult:
        """Merge files into the folder of files at the place."""
        ...
