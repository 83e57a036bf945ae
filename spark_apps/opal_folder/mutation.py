"""A run from its claim to its result.

The caller brings the merge of files: `opal_spark.mutate` does it with Spark.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from opal_folder import journal
from opal_folder.increments import Increment, in_order, list_increments
from opal_folder.journal import Claim, Outcome
from opal_folder.local_master import LocalMaster
from opal_folder.master_folder import SIDE, MasterFile, MasterFolder, MasterForm, working_path
from opal_folder.merged_names import keep_names, was_merged
from opal_folder.s3_master import S3Master
from opal_lake.definition.job_names import check_token
from opal_lake.errors import ConflictError, InvalidInputError, OpalError, StorageError
from opal_lake.operations.mutate import Mutate
from opal_lake.result import JobResult
from opal_lake.s3a import is_s3
from opal_lake.storage import Storage, open_storage, options_for
from opal_lake.storage.uris import local_root

# Kinds of tables, each with a folder in it, and the ending of a file in that folder
_TABLES = (
    ("a Delta", "_delta_log/", ""),
    ("an Iceberg", "metadata/", ".metadata.json"),
    ("a Hudi", ".hoodie/", ""),
    ("an Opal", "_opal/", ""),
)
_NO_TABLES = (
    "a mutation works on plain folders. Upsert into the table with its own means, or copy its rows "
    "into a folder first. Nothing was changed"
)
_log = logging.getLogger(__name__)
BLIND = (
    "S3 cannot swap folders: {uri} itself still shows the files of before the first run, until "
    "retention deletes them. Read the files that opal_spark.mutate.read_master(spark, uri) reads, "
    "which the newest decided runs/*/outcome.json in {uri}.mutate lists"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The input of a merge.

    `increments` are in the order of their mutations, and `readable` says where they lie now. `form`
    is that of the last run, `suffix` the greatest of earlier runs, and `is_first` is set if no run
    has been decided. The new master is written to `target` below `side`; without one, rows are only
    counted.
    """

    increments: Sequence[Increment]
    readable: Sequence[tuple[Storage, str]]
    master: Sequence[MasterFile]
    form: MasterForm | None
    is_first: bool
    suffix: int | None
    side: Storage
    target: str | None
    rejected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The counts and files of a merge.

    `untouched` are files of the old master that are also the new one's. `form` is the new master's;
    None if none was written.
    """

    counts: Mapping[str, int]
    is_changed: bool
    form: MasterForm | None = None
    untouched: Sequence[MasterFile] = ()
    files: Sequence[Mapping[str, object]] = ()
    notes: Sequence[str] = field(default_factory=list)


Merge = Callable[[Work], Merged]


def open_master(uri: str, options: Mapping[str, str] | None = None) -> MasterFolder:
    """Open the folder of a master, which need not exist yet."""
    if is_s3(uri):
        return S3Master.open(uri, options or {})
    return LocalMaster.open(uri)


def run_mutation(
    folder: MasterFolder,
    job: Mutate,
    merge: Merge,
    options: Mapping[str, str] | None = None,
) -> JobResult:
    """Merge the increments that exist now, once for a token.

    Runs that crashed are repaired first: completed, or their files given back.
    """
    token = job.token
    check_token(token)
    refuse_tables(folder, options or {}, _NO_TABLES)
    if job.dry_run:
        return _rehearsed(folder, job, merge, options or {})
    with _file_errors(folder), folder.lock():
        newest = recover(folder)
        earlier = journal.read_result(folder.side, token)
        if earlier is not None:
            return earlier
        listed = _listed(folder, job, options or {})
        if not listed:
            return journal.keep_result(folder.side, token, _nothing(folder, token))
        claim = Claim(
            run=newest + 1,
            token=token,
            increments=tuple(listed),
            backups=job.backups,
        )
        # Before a file is moved: by the claim the next run gives back what a crash left
        journal.write_claim(folder.side, claim)
        try:
            outcome = _merged(folder, claim, merge)
        except BaseException as error:
            was_taken_over = _give_up(folder, claim)
            if was_taken_over and isinstance(error, Exception):
                raise _taken_over(folder) from error
            raise
        if not journal.decide(folder.side, claim.run, outcome):
            _give_up(folder, claim)
            raise _taken_over(folder)
        return _settle(folder, claim, outcome)


def _give_up(folder: MasterFolder, claim: Claim) -> bool:
    """Abandon a run; return whether another run had abandoned it before."""
    try:
        outcome = journal.read_outcome(folder.side, claim.run)
        _abandon(folder, claim)
    except ConflictError:
        return True
    except (OpalError, OSError):
        # The next run does it; the error that stopped this run is the one to raise
        return False
    return outcome is not None and not outcome.is_decided


def _taken_over(folder: MasterFolder) -> ConflictError:
    return ConflictError(
        f"another run of {folder.uri} took the increments of this one over: try again"
    )


@contextmanager
def _file_errors(folder: MasterFolder) -> Iterator[None]:
    """Turn an error of the file system that names a file into one with the next step."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise StorageError(
            f"the file system refused a step of this run on {folder.uri}: {error}. A decided run "
            "stays decided, and all else is as it was: remove the cause, then run it again"
        ) from error


def bytes_of(uri: str, job: Mutate, options: Mapping[str, str]) -> int:
    """Return the bytes of the master and of the increments, before a run begins.

    Raises InvalidInputError for what a run would refuse. Increments may be missing that a stopped
    run took: the next run puts them back. With a token whose result is known nothing is read.
    """
    folder = open_master(uri, options)
    if journal.read_result(folder.side, _result_token(job.token, dry_run=job.dry_run)) is not None:
        return 0
    refuse_tables(folder, options, _NO_TABLES)
    newest = journal.runs(folder.side)[:1]
    is_settled = all(journal.is_done(folder.side, run) for run in newest)
    try:
        listed = _listed(folder, job, options)
    except InvalidInputError:
        is_alone = is_settled and journal.runs(folder.side)[:1] == newest
        if is_alone:
            raise
        # Another run may have taken the increments that are missing
        listed = []
    master_bytes = sum(file.size for file in folder.master_files())
    return master_bytes + sum(increment.size for increment in listed)


def find_result(
    uri: str, token: str, *, dry_run: bool, options: Mapping[str, str] | None = None
) -> JobResult | None:
    """Return the result of the run with this token, None before its end.

    A run that was decided and stopped before its end is completed by the next one.
    """
    side = open_master(uri, options).side
    return journal.read_result(side, _result_token(token, dry_run=dry_run))


def _result_token(token: str | None, *, dry_run: bool) -> str | None:
    return journal.dry(token) if dry_run else token


def report_uri(result: JobResult) -> str | None:
    """Return the URI of a run's report; None for a dry run, or one without increments."""
    if result.version is None:
        return None
    return f"{result.table}{SIDE}/{journal.report_path(result.version)}"


def recover(folder: MasterFolder) -> int:
    """Complete or undo the runs that crashed, the oldest first.

    Returns the number of the newest run. The next run has to have the number after it: another one
    that began meanwhile may be at work on the same files.
    """
    newest_first = journal.runs(folder.side)
    unfinished: list[int] = []
    for run in newest_first:
        if journal.is_done(folder.side, run):
            break
        unfinished.append(run)
    for run in reversed(unfinished):
        claim = journal.read_claim(folder.side, run)
        outcome = journal.read_outcome(folder.side, run)
        if outcome is not None and outcome.is_decided:
            _log.warning(
                "run %s of %s is completed: it was decided, and stopped before its end",
                run,
                folder.uri,
            )
            _settle(folder, claim, outcome)
        else:
            _abandon(folder, claim)
    return newest_first[0] if newest_first else 0


def _abandon(folder: MasterFolder, claim: Claim) -> None:
    """Give the files of a run back; complete it instead if it was decided after all."""
    abandoned = Outcome(is_decided=False)
    if not journal.decide(folder.side, claim.run, abandoned):
        outcome = journal.read_outcome(folder.side, claim.run)
        assert outcome is not None
        _settle(folder, claim, outcome)
        return
    folder.give_back(claim.run, claim.increments)
    journal.write_abandoned(folder.side, claim.run)
    journal.forget(folder.side, journal.history(folder.side, claim.run, None))
    folder.tidy(claim.run)


def _merged(folder: MasterFolder, claim: Claim, merge: Merge) -> Outcome:
    folder.take(claim.run, claim.increments)
    readable = []
    for number, increment in enumerate(claim.increments):
        path = working_path(claim.run, number, increment)
        readable.append((folder.side, path))
    target = folder.staging(claim.run)
    work = _work(folder, claim.increments, readable, target, f"rejected/{claim.run:08d}")
    merged = merge(work)
    folder.check_unchanged(claim.run, claim.increments)
    if work.is_first:
        folder.remember(claim.run, work.master)
    files: list[MasterFile] = []
    if merged.form is not None:
        files = folder.complete(claim.run, merged.untouched, merged.form)
    elif is_s3(folder.uri):
        files = list(work.master)
    suffixes = [work.suffix, *(increment.suffix for increment in claim.increments)]
    known_suffixes = [suffix for suffix in suffixes if suffix is not None]
    return Outcome(
        is_decided=True,
        is_changed=merged.is_changed,
        files=tuple(files),
        suffix=max(known_suffixes, default=None),
        form=merged.form or work.form,
        result=_result(folder, claim.run, claim.token, merged).to_dict(),
    )


def _settle(folder: MasterFolder, claim: Claim, outcome: Outcome) -> JobResult:
    """Complete a decided run; each step may be repeated."""
    if outcome.is_changed:
        folder.publish(claim.run)
    folder.finish(claim.run, claim.increments)
    # Only a new master makes a backup too many
    backups = claim.backups if outcome.is_changed else None
    past = journal.history(folder.side, claim.run, backups)
    if outcome.is_changed:
        folder.drop_backups(claim.run, claim.backups, past.masters)
    result = journal.result_of(outcome.result)
    keep_names(folder.side, claim.increments)
    # After all other steps: a run without this mark is completed once more
    journal.write_done(folder.side, claim.run, result)
    journal.forget(folder.side, past)
    folder.tidy(claim.run)
    return result


def _rehearsed(
    folder: MasterFolder, job: Mutate, merge: Merge, options: Mapping[str, str]
) -> JobResult:
    """Count what a run would do; write nothing but the result of a token."""
    token = job.token
    listed = _listed(folder, job, options)
    if not listed:
        return journal.keep_result(folder.side, journal.dry(token), _nothing(folder, token))
    readable: list[tuple[Storage, str]] = []
    for increment in listed:
        storage = open_storage(increment.root, options_for(increment.root, options))
        readable.append((storage, increment.path))
    merged = merge(_work(folder, listed, readable, None, ""))
    notes = ("dry run: nothing was changed", *merged.notes)
    result = replace(_result(folder, None, token, merged), notes=notes)
    return journal.keep_result(folder.side, journal.dry(token), result)


def _work(
    folder: MasterFolder,
    increments: Sequence[Increment],
    readable: Sequence[tuple[Storage, str]],
    target: str | None,
    rejected: str,
) -> Work:
    newest = journal.newest_decided(folder.side)
    if newest is not None and is_s3(folder.uri):
        master, form = newest.files, newest.form
    else:
        # The record lies in the folder, so that it also holds for a copy without its side folder
        master = tuple(folder.master_files())
        form = folder.form()
    return Work(
        increments=increments,
        readable=readable,
        master=master,
        form=form,
        is_first=newest is None,
        suffix=None if newest is None else newest.suffix,
        side=folder.side,
        target=target,
        rejected=rejected,
    )


def _listed(folder: MasterFolder, job: Mutate, options: Mapping[str, str]) -> list[Increment]:
    listed = list_increments(job.increments, options, lambda path: was_merged(folder.side, path))
    if not listed:
        return []
    master = f"{_absolute(folder.uri)}/"
    for increment in listed:
        if f"{_absolute(increment.source)}/".startswith(master):
            raise InvalidInputError(
                f"{increment.source} lies in the master {folder.uri} itself; keep increments in a "
                "folder of their own"
            )
    local = [increment.source for increment in listed if not is_s3(increment.root)]
    if not is_s3(folder.uri):
        local += [f"{file.root}/{file.path}" for file in folder.master_files()]
    _refuse_colons(local)
    return in_order(listed, job.order)


def _absolute(uri: str) -> str:
    """Return a form of a URI for comparisons: the same for each way to write it."""
    if is_s3(uri):
        return uri.partition("://")[2]
    return os.path.realpath(local_root(uri))


def refuse_tables(folder: MasterFolder, options: Mapping[str, str], advice: str) -> None:
    """Raise InvalidInputError if a folder is a table: only its log says what counts."""
    storage = open_storage(folder.uri, options_for(folder.uri, options))
    for kind, log_folder, ending in _TABLES:
        if any(file.path.endswith(ending) for file in storage.list(log_folder)):
            raise InvalidInputError(
                f"{folder.uri} is {kind} table, of which only its log says which files count: "
                f"{advice}"
            )


def _refuse_colons(files: Sequence[str]) -> None:
    """Raise InvalidInputError for a local file with a colon in its name.

    Hadoop makes the name of its checksum file of it, and takes what is before a colon for a scheme.
    """
    for file in files:
        name = file.rpartition("/")[2]
        if ":" in name:
            raise InvalidInputError(
                f"{file} cannot be read, because its name has a colon, which Spark's local files "
                f"may not have: rename it to {name.replace(':', '_')!r}. Nothing was changed"
            )


def _result(folder: MasterFolder, run: int | None, token: str | None, merged: Merged) -> JobResult:
    notes = [*merged.notes]
    if is_s3(folder.uri):
        notes.append(BLIND.format(uri=folder.uri))
    return JobResult(
        operation="mutate",
        table=folder.uri,
        version=run,
        token=token,
        counts=dict(merged.counts),
        notes=tuple(notes),
        examples=tuple(dict(file) for file in merged.files),
    )


def _nothing(folder: MasterFolder, token: str | None) -> JobResult:
    return JobResult(
        operation="mutate", table=folder.uri, token=token, notes=("no increment to merge",)
    )
