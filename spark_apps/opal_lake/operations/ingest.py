"""Ingest: append rows from memory, files or a database."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import Declared, declaration
from opal_lake.arguments.values import (
    Help,
    IngestMode,
    Metadata,
    OnBadRows,
    OnEmpty,
    OnNewColumns,
    Threshold,
)
from opal_lake.errors import InvalidInputError, NoRowsError, NotFoundError
from opal_lake.operations.create import Create, NewTable
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult
from opal_lake.source import Files, Jdbc, check_named_files, no_file_message, source_from_json

if TYPE_CHECKING:
    from opal_lake.definition.table_spec import TableSpec
    from opal_lake.engine.open_table import OpenTable
    from opal_lake.engine.place import Place, SeenPlace


# Arguments for rows in memory and for streams: jobs, operators and commands do not have them
PYTHON_ONLY = frozenset({"deleted", "application", "positions"})


@declaration
class IngestRules(Declared):
    """The rules of an ingest, on its own or in a pipeline, whatever the source."""

    name: ClassVar[str] = "ingest"

    mode: Annotated[
        IngestMode,
        Help("replace: rows of the partition key that the source no longer has end; append: stay"),
    ] = "append"
    metadata: Annotated[
        Metadata,
        Help("batch: a later MetaGen makes the rows visible; inline: the ingest itself"),
    ] = "batch"
    on_bad_rows: Annotated[
        OnBadRows, Help("what to do with rows that do not fit: fail, or put them aside")
    ] = "fail"
    reject_threshold: Annotated[
        Threshold | None,
        Help("with quarantine: fail if more rows than this are bad, such as 100 or 5%", "N|N%"),
    ] = None
    on_empty: Annotated[
        OnEmpty | None,
        Help("what to do with a source without rows: fail, or accept it as no change"),
    ] = None
    on_new_columns: Annotated[
        OnNewColumns, Help("what to do with columns of the source that the table lacks")
    ] = "fail"
    business_snapshot: Annotated[
        str | None,
        Help("the open business snapshot or a later one, for all rows, such as 2022-07-15", "NAME"),
    ] = None
    business_snapshot_column: Annotated[
        str | None,
        Help(
            "a column with the business snapshot of each row; each snapshot is a commit", "COLUMN"
        ),
    ] = None

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for arguments that exclude or need each other."""
        _check_mode(given, is_open)
        if given["business_snapshot"] is not None and given["business_snapshot_column"] is not None:
            raise InvalidInputError(
                "business_snapshot and business_snapshot_column exclude each other; "
                "give one of them"
            )
        threshold, on_bad_rows = given["reject_threshold"], given["on_bad_rows"]
        if threshold is None or is_open(threshold) or is_open(on_bad_rows):
            return
        # Imported here: the import is a twentieth of the time in which a DAG file is parsed
        from opal_lake.reject_threshold import parse_threshold

        parse_threshold(threshold, on_bad_rows)


def _check_mode(given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
    """Raise InvalidInputError for arguments that exclude `mode="replace"`."""
    if given["mode"] != "replace":
        return
    for name in ("business_snapshot", "business_snapshot_column", "positions"):
        value = given.get(name)
        if value is not None:
            raise InvalidInputError(
                f"mode='replace' and {name} exclude each other: an ingest that replaces a "
                "partition key has all of its rows, in one commit; leave out one of them"
            )


@declaration
class Ingest(IngestRules, Job):
    """Append the rows of a source: from memory, a DataFrame, files, or a database.

    They become visible with the next `metagen` that selects their partition key, or, with
    `metadata="inline"`, with this call. The same token twice applies once.

    `partition_key`, such as a day, names the rows, so that `read` can select them. With
    `mode="replace"` the source has all rows of the partition key: visible rows of the key end whose
    keys the source no longer has, and its pending rows are discarded. Rows that another ingest or a
    statement has replaced stay. With
    `on_bad_rows="quarantine"` bad rows are put aside. If there are more than `reject_threshold`,
    such as 100 or "5%", the ingest fails before it commits. `on_empty` says whether an ingest from
    a source without a row fails, or changes nothing. By default it fails for files and databases,
    and changes nothing for rows in memory and DataFrames.

    `on_new_columns` says what happens with columns of the source that the table lacks: "fail",
    "add" them to the table, or "ignore" them. The source may lack columns that were added to the
    table; they are null then.

    `business_snapshot`, such as "2022-07-15", is the business snapshot of all rows. Or
    `business_snapshot_column` names a column of the table with the business snapshot of each row.
    Then each business snapshot has its own commit, and rows of a later one than the open one are
    held back for the drift time (property `drift`).

    `replaces` are tokens of earlier tries of the same task: their pending rows are discarded in the
    commit that adds these rows. Their visible rows stay.

    `deleted` marks the rows in memory that delete their key. `application` is the token of a
    stream: its name, with a number that rises. `positions` stores how far each application has read
    its source. FencedError is raised if another process has read further for an application.
    """

    source: Any = field(kw_only=False)
    deleted: Any = field(default=None, kw_only=False)
    application: tuple[str, int] | None = None
    positions: Mapping[str, Any] | None = None
    partition_key: str | None = None
    replaces: Annotated[
        Sequence[str] | None,
        Help(
            "the token of an earlier try, whose pending rows these rows replace; repeat for more",
            "TOKEN",
        ),
    ] = None

    def check_key(self) -> None:
        """Raise InvalidInputError for an ingest that replaces a partition key without one."""
        if self.mode == "replace" and self.partition_key is None:
            raise InvalidInputError(
                "mode='replace' needs a partition_key: rows of this key end that the source no "
                "longer has. To replace the rows of a condition or all rows, use overwrite"
            )

    @property
    def refuses_empty(self) -> bool:
        """True if a source without a row is an error."""
        if self.on_empty is not None:
            return self.on_empty == "fail"
        return isinstance(self.source, Files | Jdbc | Mapping)

    def run(self, table: "OpenTable") -> JobResult:
        """Let the engine read the source, write its rows, and commit."""
        from opal_lake.write.by_business_snapshot import ingest_rows

        strict = replace(self, on_empty="fail") if self.refuses_empty else self
        try:
            return ingest_rows(table, strict)
        except NoRowsError:
            if self.refuses_empty:
                raise
            # Without a file the source has no columns: those of the table stand in
            none = table.executor.no_rows(table.snapshot_at().spec)
            empty = replace(strict, source=none, business_snapshot_column=None)
            return ingest_rows(table, empty)


@declaration
class Upsert(Ingest):
    """Insert or replace rows by key; they are visible with this call.

    It is an ingest with `metadata="inline"`: of two rows of a key, the one with the greater delta
    counts.
    """

    metadata: Metadata = "inline"


@declaration
class IngestSource(Ingest):
    """An ingest as a job: from files or a database, into a table that it may create.

    `source` is `{"files": {...}}` or `{"jdbc": {...}}`. `create` defines a table that does not
    exist yet; without a schema its columns are the source's.
    """

    needs_table: ClassVar[bool] = False

    source: Mapping[str, Any] = field(kw_only=False)
    create: NewTable | None = None

    @classmethod
    def plain(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments; raise InvalidInputError for those that need Python."""
        refused = sorted(PYTHON_ONLY & arguments.keys())
        if refused:
            raise InvalidInputError(
                f"an ingest as a job has no argument {', '.join(refused)}; leave it out"
            )
        return arguments

    def run(self, target: "Place") -> JobResult:  # type: ignore[override]  # it may have no table
        """Create the table if it is missing and `create` is given, and ingest."""
        # First, so that a bad source is an error before a table is created
        source = source_from_json(self.source)
        create = self._create(source)
        if create is not None:
            create.run(target)
        return self.with_source(source).run(target.open())

    def look(self, target: "SeenPlace") -> None:  # type: ignore[override]  # it may have no table
        """Raise the errors of the job for the table, the source and missing files.

        A schema as SQL text is left to the job: only Spark parses all of SQL's types.
        """
        self.check_key()
        source = source_from_json(self.source)
        create = self._create(source)
        try:
            spec = target.open().snapshot_at().spec
        except NotFoundError:
            if create is None:
                raise
            create.check_conditions()
        else:
            if create is not None:
                create.check_existing(target.uri, spec)
            self._check_columns(source, spec)
        if self.refuses_empty and isinstance(source, Files):
            self._check_files(source, target)

    def _check_files(self, source: Files, target: "SeenPlace") -> None:
        if all(map(target.lacks, source.paths)):
            raise NoRowsError(no_file_message(source))

    def _check_columns(self, source: Files | Jdbc, spec: "TableSpec") -> None:
        from opal_lake.write.by_business_snapshot import check_column

        if self.business_snapshot_column is not None:
            check_column(spec, self.business_snapshot_column)
        if isinstance(source, Files):
            check_named_files(source, spec)

    def _create(self, source: Files | Jdbc) -> Create | None:
        """Return the operation that creates the table, or accepts an existing one."""
        if self.create is None:
            return None
        from opal_lake.definition.table_spec import NO_DELETES

        definition = NewTable.among(vars(self.create))
        if isinstance(source, Files) and source.deletes is not None:
            definition.setdefault("deletes", NO_DELETES)
        like = None if self.create.schema is not None else self.source
        return Create(**definition, like=like, if_absent=True)

    def with_source(self, source: Any) -> Ingest:
        """Return the ingest of another source, into an existing table."""
        arguments = {**Ingest.among(vars(self)), "source": source}
        return Ingest(**arguments)
