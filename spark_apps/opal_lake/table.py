"""The API of a table: its verbs, each made from the declaration of its operation.

`Table` runs the verbs in this process, over Arrow. `opal_spark.OpalTable` is a `Table` that runs
them on Spark.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pyarrow as pa

import opal_lake.retention.missing_file  # noqa: F401  # registers the diagnosis of missing files
from opal_lake import layout
from opal_lake.after_commit import notify_of_commit
from opal_lake.clock import Clock, SystemClock
from opal_lake.definition.table_spec import TableLayout, TableSpec, delete_condition, plan_spec
from opal_lake.engine.executor import Executor
from opal_lake.engine.in_process import InProcess
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import (
    CommitUnknownError,
    InvalidInputError,
    OpalError,
    StorageError,
    TableExistsError,
)
from opal_lake.ids import IdSource, RandomIds
from opal_lake.key_store.cache.near_runs import CacheSettings, NearRuns
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import CREATE, Actions, Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.store_clock import writer_now_us
from opal_lake.log.tuning import DEFAULT_TUNING, Tuning
from opal_lake.operations.compact import Compact
from opal_lake.operations.discard import Discard
from opal_lake.operations.erase import Erase
from opal_lake.operations.ingest import Ingest, Upsert
from opal_lake.operations.look import (
    Check,
    Commits,
    Describe,
    History,
    ListFiles,
    ListSegments,
)
from opal_lake.operations.maintain import Maintain
from opal_lake.operations.metagen import MetaGen
from opal_lake.operations.read import Changes, Explain, Get, HistoryView, Read
from opal_lake.operations.rebuild_key_store import RebuildKeyStore
from opal_lake.operations.rejected import ListRejected, Replay
from opal_lake.operations.restore import Restore
from opal_lake.operations.retain import Retain
from opal_lake.operations.savepoints import (
    FinishBusinessSnapshot,
    Release,
    RepairClock,
    Savepoint,
)
from opal_lake.operations.spec_changes import AddColumns, Alter, SetProperties
from opal_lake.operations.statements import (
    TRIES,
    Delete,
    DropPartition,
    Insert,
    Merge,
    MergeBuilder,
    Overwrite,
    Update,
)
from opal_lake.operations.verb import Frame, Framed, rows_verb, verb, verb_of
from opal_lake.operations.zorder import ZOrder
from opal_lake.result import JobResult
from opal_lake.retention.drop import remove_unfinished
from opal_lake.storage import Storage, open_storage

# How many files below a new table's root are searched for another table: three requests of S3.
MAX_LOOKED_AT = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(OpenTable, Framed[Frame]):
    """A table at a URI. Each call uses the newest version.

    `Table.create` creates a table, `Table.open` opens one. Rows are Arrow tables.
    """

    executor: Executor = field(default_factory=InProcess)

    ingest = verb(Ingest)
    metagen = verb(MetaGen)
    discard = verb(Discard)

    update = verb(Update)
    delete = verb(Delete)
    insert = verb(Insert)
    upsert = verb(Upsert)
    overwrite = verb(Overwrite)

    read = rows_verb(Read)
    get = verb(Get)
    changes = rows_verb(Changes)
    history_view = rows_verb(HistoryView)
    explain = verb(Explain)

    compact = verb(Compact)
    zorder = verb(ZOrder)
    retain = verb(Retain)
    erase = verb(Erase)
    maintain = verb(Maintain)
    rebuild_key_store = verb(RebuildKeyStore)

    restore = verb(Restore)
    savepoint = verb(Savepoint)
    release = verb(Release)
    finish_business_snapshot = verb(FinishBusinessSnapshot)
    repair_clock = verb(RepairClock)
    set_properties = verb(SetProperties)
    add_columns = verb(AddColumns)
    alter = verb(Alter)

    describe = verb(Describe)
    history = verb(History)
    commits = verb(Commits)
    files = verb(ListFiles)
    segments = verb(ListSegments)
    check = verb(Check)

    rejected = verb(ListRejected)
    replay = verb(Replay)

    def merge(
        self,
        source: Any,
        *,
        on: Any,
        target: str = "t",
        source_alias: str = "s",
        duplicates: str = "fail",
    ) -> MergeBuilder:
        """Begin a merge of a source into the table; its clauses and `execute` follow.

        `on`, such as "t.id = s.id", says when rows match: `target` and `source_alias` are the names
        of the two sides. With `duplicates="latest"` only the latest row of each key in the source
        counts. A merge on all keys costs as much as the source has rows, however large the table.
        """
        merge = Merge(
            source,
            on=on,
            target=target,
            source_alias=source_alias,
            duplicates=duplicates,
        )
        return MergeBuilder(table=self, merge=merge)

    @verb_of(DropPartition)
    def drop_partition(
        self,
        partition: Mapping[str, Any] | None = None,
        *,
        at: Any = None,
        token: str | None = None,
        tries: int = TRIES,
        **values: Any,
    ) -> JobResult:
        """Delete the rows of a partition, such as `day="2026-01-01"`.

        Rows of all partitions with these values of partition columns end, at `at` or at their own
        delta; None stands for null. A column that is called like an argument is given in
        `partition`.
        """
        given = {**(partition or {}), **values}
        return DropPartition(given, at=at, token=token, tries=tries).run(self)

    def position(self, application: str) -> int | None:
        """Return the next position that an application has to read; None before its first."""
        return self.log.head().positions.get(application)

    @classmethod
    def open(
        cls,
        uri: str,
        options: Mapping[str, str] | None = None,
        cache: CacheSettings | None = None,
    ) -> "Table[pa.Table]":
        """Open the table at a URI; raise NotFoundError if it does not exist."""
        table = table_on(open_storage(uri, options), cache=cache)
        table.snapshot_at()
        return table

    @classmethod
    def create(
        cls,
        uri: str,
        schema: pa.Schema,
        *,
        keys: Sequence[str],
        delta: str,
        tie_break: Sequence[str] = (),
        deletes: str | None = None,
        partition_by: Sequence[str] = (),
        file_format: str = "parquet",
        properties: Mapping[str, int | str] | None = None,
        options: Mapping[str, str] | None = None,
        not_null: Sequence[str] = (),
        constraints: Mapping[str, str] | None = None,
        generated: Mapping[str, str] | None = None,
    ) -> "Table[pa.Table]":
        """Create a table with these columns.

        A row that meets the condition `deletes` deletes its key, as of the row's delta. No other
        row may have nulls in the columns `not_null`, or make one of the `constraints` false. These
        are conditions by their names, such as `{"positive": "amount > 0"}`. `generated` are
        expressions by the names of their columns, such as `{"day": "date(at)"}`.
        """
        layout = TableLayout(
            keys=keys,
            delta=delta,
            tie_break=tie_break,
            deletes=deletes,
            partition_by=partition_by,
            file_format=file_format,
            properties=properties or {},
            not_null=not_null,
            constraints=constraints or {},
            generated=generated or {},
        )
        return create_on(open_storage(uri, options), plan_spec(schema, layout))


def table_on(
    storage: Storage,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    cache: CacheSettings | None = None,
    *,
    tuning: Tuning = DEFAULT_TUNING,
) -> Table[pa.Table]:
    """Return a table in an open store.

    The store is not read: only the first call shows whether the table exists.
    """
    log = CommitLog(
        storage=storage, clock=clock or SystemClock(), ids=ids or RandomIds(), tuning=tuning
    )
    return Table(log=log, cache=NearRuns(storage=storage, settings=cache or CacheSettings()))


def create_on(
    storage: Storage,
    spec: TableSpec,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    cache: CacheSettings | None = None,
    *,
    tuning: Tuning = DEFAULT_TUNING,
    token: str | None = None,
    unfinished: bool = False,
) -> Table[pa.Table]:
    """Create a table by writing version 0; raise TableExistsError if it exists.

    If two writers create a table at the same time, one fails. An `unfinished` table does not exist
    for readers before its next version.
    """
    # Raise before anything is written
    delete_condition(spec)
    _ = spec.checks, spec.generated
    table = table_on(storage, clock, ids, cache, tuning=tuning)
    # An existing table may lack version 0, since retention deletes it. So the log is listed before
    # the commit, and the checkpoints after it.
    if any(storage.list(layout.DROPPED)):
        raise InvalidInputError(
            f"the drop of the table that was at {storage.uri} still runs or was killed; drop it "
            "again, then create the new table"
        )
    if any(storage.list(layout.LOG)):
        raise _exists(table.log)
    _refuse_within_a_table(storage)
    _refuse_around_a_table(storage)
    own_us = table.log.clock.now_us()
    commit = Commit(
        version=0,
        table_id=table.log.ids.new_id(),
        write_id=table.log.ids.new_id(),
        previous_write_id=None,
        timestamp_us=writer_now_us(own_us, storage.now_us(), spec, storage.uri),
        operation=CREATE,
        token=token,
        changes_view=True,
        result=JobResult(operation=CREATE, table=storage.uri, version=0, token=token).to_dict(),
        actions=Actions(spec=spec, unfinished=unfinished),
    )
    if not table.log.put(commit) or any(storage.list(layout.CHECKPOINTS)):
        raise _exists(table.log)
    if not unfinished:
        notify_of_commit(table.log, table.log.head)
    return table


@contextmanager
def creation_with_rows(
    storage: Storage, spec: TableSpec, cache: CacheSettings | None = None
) -> Iterator[Table[pa.Table]]:
    """Yield a new table that waits for its first rows, which the block commits.

    A block that fails leaves no table. If the store fails, or if another job goes on with the
    unfinished table, the table stays, and a note of the error says so.
    """
    table, is_own = _begun(storage, spec, cache)
    try:
        yield table
    except Exception as error:
        # After a failure of the store it may be unknown what was committed
        is_removable = is_own and not isinstance(error, StorageError | CommitUnknownError)
        with suppress(OpalError):
            if not (is_removable and remove_unfinished(table.log)):
                _note_unfinished(table.log, error)
        raise


def _note_unfinished(log: CommitLog, error: Exception) -> None:
    """Add to an error that an unfinished table stays, if one does."""
    if log.newest().root.unfinished:
        error.add_note(
            f"An unfinished table stays at {log.storage.uri}, which readers do not see. Run the "
            "statement again to finish it, or DROP TABLE it."
        )


def begin_with_rows(
    storage: Storage, spec: TableSpec, cache: CacheSettings | None = None
) -> Table[pa.Table]:
    """Return a new table that waits for its first rows, for the job that writes them.

    For others the table does not exist before its version 1, which this table's next job commits.
    If a killed job has begun a table with the same definition, this one goes on with it. Raises
    TableExistsError if the table exists.
    """
    return _begun(storage, spec, cache)[0]


def _begun(
    storage: Storage, spec: TableSpec, cache: CacheSettings | None
) -> tuple[Table[pa.Table], bool]:
    """Return a table that waits for its rows, and whether this call has begun it."""
    is_own = True
    try:
        table = create_on(storage, spec, cache=cache, unfinished=True)
    except TableExistsError:
        table = table_on(storage, cache=cache)
        head = table.log.newest()
        if not head.root.unfinished:
            raise
        if head.spec != spec:
            raise InvalidInputError(
                f"{storage.uri} has an unfinished table with another definition, whose creation "
                "still runs or was killed; DROP TABLE it first"
            ) from None
        # By this claim the job that began the table knows that it must not remove it
        claim_number(storage, head.root, CREATE, table.log.clock)
        is_own = False
    return replace(table, log=replace(table.log, creates=True)), is_own


def finish_without_rows(table: OpenTable, token: str | None = None) -> JobResult:
    """Commit version 1 of a table that waits for rows, and gets none."""
    log = table.log
    base = log.head()

    def build(_: Snapshot, __: Sequence[Commit]) -> Draft:
        return Draft(actions=Actions(), result=JobResult(operation=CREATE, table=log.storage.uri))

    proposal = Proposal(
        operation=CREATE, number=None, build=build, started_us=log.clock.now_us(), token=token
    )
    return log.commit(base, proposal)


def _refuse_within_a_table(storage: Storage) -> None:
    """Raise InvalidInputError if a folder above is a table, the owner of its files.

    A folder that cannot be listed is skipped: the credentials may be for this table alone.
    """
    above = storage.parent()
    while above is not None:
        try:
            is_table = any(above.list(layout.LOG))
        except StorageError:
            is_table = False
        if is_table:
            raise InvalidInputError(
                f"{storage.uri} lies inside the Opal table {above.uri}, and a table cannot contain "
                "another one; choose a path outside of that table"
            )
        above = above.parent()


def _refuse_around_a_table(storage: Storage) -> None:
    """Raise InvalidInputError if a folder below the new table is a table.

    An empty root costs one listing. In a root with many files only the first ones are searched, and
    the first ones of the folders that retention lists. Retention spares a table that this misses.
    """
    for prefix in ("", layout.DATA, layout.META):
        looked_at = 0
        with suppress(StorageError):  # a folder that cannot be listed is skipped
            for entry in islice(storage.list(prefix), MAX_LOOKED_AT):
                looked_at += 1
                inner = layout.inner_table(entry.path)
                if inner is not None:
                    raise InvalidInputError(
                        f"{storage.uri} cannot become an Opal table, since it contains the table "
                        f"{storage.uri}/{inner.rstrip('/')}; choose a path without a table"
                    )
        if prefix == "" and looked_at == 0:
            return


def _exists(log: CommitLog) -> TableExistsError:
    uri = log.storage.uri
    # A damaged table exists as well
    with suppress(OpalError):
        if log.newest().root.unfinished:
            return TableExistsError(
                f"{uri} has an unfinished table: the statement that creates it with its rows still "
                "runs, or was killed; run that statement again, or DROP TABLE it first"
            )
    return TableExistsError(
        f"{uri} is an Opal table already; open it with OpalTable.for_path, accept it "
        "with `opal create --if-absent`, or choose another path"
    )
