"""Operations that make a table, fill it, or change what it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar

from opal_lake.errors import InvalidInputError
from opal_lake.job.operations.declared import Declared, Operation, declaration
from opal_lake.job.operations.values import (
    METADATA,
    ON_BAD_ROWS,
    ON_NEW_COLUMNS,
    Changes,
    Columns,
    Help,
    MegaBytes,
    Properties,
    Version,
    one_of,
)
from opal_lake.job.source import BATCH_MB, SOURCE_TABLE_FORMATS

COLUMN_ROLES = ("keys", "delta", "tie_break", "partition_by")  # what a column may be for a table
FileFormat = Annotated[str, one_of("parquet", "orc")]
Metadata = Annotated[str, METADATA]
OnBadRows = Annotated[str, ON_BAD_ROWS]
OnNewColumns = Annotated[str, ON_NEW_COLUMNS]
OnEmpty = Annotated[str, one_of("fail", "accept")]


@declaration
class NewTable(Declared):
    """What a table is made with. A row that meets the condition `deletes` deletes its key. `schema` is as in CREATE TABLE."""

    name: ClassVar[str] = "create"

    keys: Columns
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
    properties: Properties = field(default_factory=dict)


@declaration
class Create(NewTable, Operation):
    """A new table with the columns of an SQL schema, or with those of a file. `if_absent` lets an equal table stand."""

    like: Mapping[str, Any] | None = None
    if_absent: Annotated[bool, Help("no error if the same table is there already")] = False


@declaration
class Ingest(Operation):
    """Append the rows of files or of a database: `source` is `{"files": {...}}` or `{"jdbc": {...}}`.

    `create` makes a table that is not there yet; without a schema its columns are the source's. `on_empty` says whether a source without
    files or rows fails, or is accepted as no change; `on_new_columns` what becomes of columns that the table lacks. With
    metadata="inline" the rows are visible at once, else by the next metagen that takes their partition key. `replaces` discards what is
    pending of earlier tries in the commit of the new rows; what is visible of them stays.
    """

    name: ClassVar[str] = "ingest"

    source: Mapping[str, Any]
    metadata: Metadata = "batch"
    on_bad_rows: OnBadRows = "fail"
    reject_threshold: Annotated[
        int | str | None,
        Help("with --quarantine: fail if more rows than this are bad (default: never)", "N|N%"),
    ] = None
    on_empty: OnEmpty = "fail"
    on_new_columns: Annotated[
        OnNewColumns, Help("what to do with columns of the source that the table lacks")
    ] = "fail"
    create: NewTable | None = None
    partition_key: str | None = None
    business_snapshot: Annotated[
        str | None,
        Help(
            "the business snapshot of the rows, as 2022-07-15; it may not be an earlier one", "NAME"
        ),
    ] = None
    business_snapshot_column: Annotated[
        str | None,
        Help("a column with the business snapshot of each row; each one is a commit", "COLUMN"),
    ] = None
    replaces: Annotated[
        Sequence[str] | None,
        Help(
            "the token of an earlier try, whose pending rows these take the place of; repeat for more",
            "TOKEN",
        ),
    ] = None

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """The threshold is a number of rows or a share of them, and needs a place for bad rows. One thing says the business snapshot."""
        if given["business_snapshot"] is not None and given["business_snapshot_column"] is not None:
            raise InvalidInputError(
                "business_snapshot and business_snapshot_column exclude each other; give one of them"
            )
        if (
            given["reject_threshold"] is not None
            and not is_open(given["reject_threshold"])
            and not is_open(given["on_bad_rows"])
        ):
            from opal_lake.job.reject_threshold import (
                parse_threshold,
            )  # here: it would be a twentieth of what a DAG file pays

            parse_threshold(given["reject_threshold"], given["on_bad_rows"])


@declaration
class Bootstrap(NewTable, Operation):
    """Take a folder of files, a Delta or an Iceberg table over. A repeat goes on after a failure."""

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


@declaration
class SetProperties(Operation):
    """Change properties of the table; null gives one its default again."""

    name: ClassVar[str] = "set_properties"

    properties: Changes


@declaration
class AddColumns(Operation):
    """Give the table more columns, by name and type, as {"discount": "double"}. Rows that are there have null."""

    name: ClassVar[str] = "add_columns"

    columns: Mapping[str, str]


@declaration
class Restore(Operation):
    """A new version that shows what an older one showed; which one is said in one of three ways."""

    name: ClassVar[str] = "restore"

    version: Annotated[Version | None, Help("what this version showed", "N")] = None
    timestamp: Annotated[
        str | None,
        Help("what had been committed up to this time, as 2026-01-31T12:00:00+00:00", "TIME"),
    ] = None
    savepoint: Annotated[str | None, Help("what the version of this savepoint showed", "NAME")] = (
        None
    )
    business_snapshots: Annotated[
        bool, Help("also take back business snapshots that began or were finished since")
    ] = False
    dry_run: Annotated[bool, Help("change nothing, and count what would")] = False

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """One of three."""
        named = [name for name in ("version", "timestamp", "savepoint") if given[name] is not None]
        if len(named) != 1:
            raise InvalidInputError(
                f"restore needs one of version, timestamp and savepoint; given are {', '.join(named) or 'none'}"
            )


OPERATIONS = (Create, Ingest, Bootstrap, SetProperties, AddColumns, Restore)
