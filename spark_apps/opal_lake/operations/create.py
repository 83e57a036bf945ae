"""Create: a new, empty table. Bootstrap: a table made of another one."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

from opal_lake.arguments.declared import Declared, declaration
from opal_lake.arguments.values import (
    Columns,
    FileFormat,
    Help,
    MegaBytes,
    OnBadRows,
    Properties,
    one_of,
)
from opal_lake.operations.verb import Job
from opal_lake.source import BATCH_MB, SOURCE_TABLE_FORMATS

COLUMN_ROLES = ("keys", "delta", "tie_break", "partition_by")  # what a column may be for a table


@declaration
class NewTable(Declared):
    """What a table is made with.

    A row that meets the condition `deletes` deletes its key. `schema` is as in CREATE TABLE.
    """

    name: ClassVar[str] = "create"

    keys: Annotated[Columns, Help("the columns of the primary key")]
    delta: Annotated[
        str, Help("when the change happened at the source; the latest one wins", "COLUMN")
    ]
    deletes: Annotated[str | None, Help("rows that fulfil it delete their key", "CONDITION")] = None
    tie_break: Annotated[Columns, Help("decides among equal deltas; repeat for more")] = field(
        default_factory=list
    )
    partition_by: Annotated[Columns, Help("repeat for more")] = field(default_factory=list)
    file_format: Annotated[FileFormat, Help("of the data files")] = "parquet"
    schema: Annotated[str | None, Help("the columns as in CREATE TABLE", "SQL")] = None
    properties: Annotated[Properties, Help("properties of the table, as segment_rows")] = field(
        default_factory=dict
    )


@declaration
class Create(NewTable, Job):
    """Create a table with the columns of an SQL schema, or with those of a file.

    `if_absent` accepts an equal table that exists.
    """

    like: Mapping[str, Any] | None = None
    if_absent: Annotated[bool, Help("no error if the same table is there already")] = False


@declaration
class Bootstrap(NewTable, Job):
    """Take over a folder of files, a Delta or an Iceberg table. A repeat goes on after a failure."""

    name: ClassVar[str] = "bootstrap"

    schema: Annotated[
        str | None, Help("the columns as in CREATE TABLE (default: those of the source)", "SQL")
    ] = None
    source: str
    format: Annotated[str, one_of(*SOURCE_TABLE_FORMATS), Help("of the source")]
    source_version: Annotated[
        int | None, Help("of Delta, or an Iceberg snapshot id (default: newest)")
    ] = None
    batch_mb: Annotated[MegaBytes, Help("ingested at once")] = BATCH_MB
    on_bad_rows: OnBadRows = "fail"
