"""A run from its claim to its result. How files are merged is given: `opal_spark.mutate` does it with Spark."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from opal_folder import journal
from opal_folder.increments import Increment, in_order, list_increments
from opal_folder.journal import Claim, Outcome
from opal_folder.local_place import LocalPlace
from opal_folder.merged_names import keep_names, was_merged
from opal_folder.place import SIDE, MasterFile, MasterForm, Place, working_path
from opal_folder.s3_place import S3Place
from opal_lake.definition.job_names import check_token
from opal_lake.errors import ConflictError, InvalidInputError, OpalError, StorageError
from opal_lake.operations.mutate import Mutate
from opal_lake.result import JobResult
from opal_lake.s3a import is_s3
from opal_lake.storage import Storage, open_storage, options_for
from opal_lake.storage.uris import local_root

# What of a table lies in its folder
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
    "S3 cannot swap folders: {uri} itself still shows the files of before the first run, until retention deletes them. Read the files that "
    "opal_spark.mutate.read_master(spark, uri) reads, which the newest decided runs/*/outcome.json in {uri}.mutate lists"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a merge works on: files in the order of their mutations, and where they are readable."""

    increments: Sequence[Increment]
    readable: Sequence[tuple[Storage, str]]
    master: Sequence[MasterFile]
    form: MasterForm | None  # how the last run wrote the master
    is_first: bool  # no run has been decided before
    suffix: int | None  # the greatest of earlier runs
    side: Storage
    target: str | None  # below `side`; None: only count
    rejected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge found and wrote.

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


def open_place(uri: str, options: Mapping[str, str] | None = None) -> Place:
    """Where a master lies, or will lie."""
    return S3Place.open(uri, options or {}) if is_s3(uri) else LocalPlace.open(uri)


def run_mutation(
    place: Place,
    job: Mutate,
    merge: Merge,
    options: Mapping[str, str] | None = None,
) -> JobResult:
    """Merge the increments that are there now, once for a token.

    What a crash left is put right first: its run completed, or its files given back.
    """
    token = job.token
    check_token(token)
    refuse_tables(place, options or {}, _NO_TABLES)
    if job.dry_run:
        return _rehearsed(place, job, merge, options or {})
    with _file_errors(place), place.lock():
        newest = recover(place)
        if (earlier := journal.read_result(place.side, token)) is not None:
            return earlier
        listed = _listed(place, job, options or {})
        if not listed:
            return journal.keep_result(place.side, token, _nothing(place, token))
        claim = Claim(
            run=newest + 1,
            token=token,
            increments=tuple(listed),
            backups=job.backups,
        )
        journal.write_claim(place.side, claim)
        try:
            outcome = _merged(place, claim, merge)
        except BaseException as error:
            if _given_up(place, claim) and isinstance(error, Exception):
                raise _taken_over(place) from error
            raise
        if not journal.decide(place.side, claim.run, outcome):
            _given_up(place, claim)
            raise _taken_over(place)
        return _settle(place, claim, outcome)


def _given_up(place: Place, claim: Claim) -> bool:
    """Whether another run had given up on it before."""
    try:
        outcome = journal.read_outcome(place.side, claim.run)
        _abandon(place, claim)
    except ConflictError:
        return True
    except (OpalError, OSError):  # the next run does it; what failed first is what counts
        return False
    return outcome is not None and not outcome.is_decided


def _taken_over(place: Place) -> ConflictError:
    return ConflictError(
        f"another run of {place.uri} took the increments of this one over: try again"
    )


@contextmanager
def _file_errors(place: Place) -> Iterator[None]:
    """A refusal of the file system, which names a file, as an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise StorageError(
            f"the file system refused a step of this run on {place.uri}: {error}. What was decided is kept, and all else is as it was: "
            "see to the cause, then run it again"
        ) from error


def bytes_of(uri: str, job: Mutate, options: Mapping[str, str]) -> int:
    """Return the bytes of the master and of the increments that are there now, before a run begins.

    InvalidInputError says what it would refuse anyway. What a stopped run took and the next one
    puts back is not missed. With a token whose result is known nothing is read.
    """
    place, token = open_place(uri, options), job.token
    if journal.read_result(place.side, journal.dry(token) if job.dry_run else token) is not None:
        return 0
    refuse_tables(place, options, _NO_TABLES)
    newest = journal.runs(place.side)[:1]
    is_settled = all(journal.is_done(place.side, run) for run in newest)
    try:
        listed = _listed(place, job, options)
    except InvalidInputError:
        if (
            is_settled and journal.runs(place.side)[:1] == newest
        ):  # no other run has taken increments meanwhile
            raise
        listed = []
    return sum(file.size for file in place.master_files()) + sum(
        increment.size for increment in listed
    )


def find_result(
    uri: str, token: str, *, dry_run: bool, options: Mapping[str, str] | None = None
) -> JobResult | None:
    """What a run with this token did; a run that was decided and stopped before its end is the next one's to complete."""
    return journal.read_result(
        open_place(uri, options).side, journal.dry(token) if dry_run else token
    )


def report_uri(result: JobResult) -> str | None:
    """Where the report of a run lies; a dry run, and one without increments, has none."""
    return (
        None
        if result.version is None
        else f"{result.table}{SIDE}/{journal.report_path(result.version)}"
    )


def recover(place: Place) -> int:
    """Put right what crashes left, the oldest first. Returns the number of the newest run: the next one has to be the one behind it, for
    another one that began meanwhile may be at work on the same files.
    """
    left, known = list[int](), journal.runs(place.side)
    for run in known:
        if journal.is_done(place.side, run):
            break
        left.append(run)
    for run in reversed(left):
        claim, outcome = journal.read_claim(place.side, run), journal.read_outcome(place.side, run)
        if outcome is not None and outcome.is_decided:
            _log.warning(
                "run %s of %s is completed: it was decided, and stopped before its end",
                run,
                place.uri,
            )
            _settle(place, claim, outcome)
        else:
            _abandon(place, claim)
    return next(iter(known), 0)


def _abandon(place: Place, claim: Claim) -> None:
    """Its files go back, unless it was decided after all."""
    abandoned = Outcome(is_decided=False)
    if not journal.decide(place.side, claim.run, abandoned):
        outcome = journal.read_outcome(place.side, claim.run)
        assert outcome is not None
        _settle(place, claim, outcome)
        return
    place.give_back(claim.run, claim.increments)
    journal.write_abandoned(place.side, claim.run)
    journal.forget(place.side, journal.history(place.side, claim.run, None))
    place.tidy(claim.run)


def _merged(place: Place, claim: Claim, merge: Merge) -> Outcome:
    place.take(claim.run, claim.increments)
    readable = [
        (place.side, working_path(claim.run, at, increment))
        for at, increment in enumerate(claim.increments)
    ]
    work = _work(
        place, claim.increments, readable, place.staging(claim.run), f"rejected/{claim.run:08d}"
    )
    merged = merge(work)
    place.check_unchanged(claim.run, claim.increments)
    if work.is_first:
        place.remember(claim.run, work.master)
    files: list[MasterFile] = []
    if merged.form is not None:
        files = place.complete(claim.run, merged.untouched, merged.form)
    elif is_s3(place.uri):
        files = list(work.master)
    suffixes = [increment.suffix for increment in claim.increments if increment.suffix is not None]
    return Outcome(
        is_decided=True,
        is_changed=merged.is_changed,
        files=tuple(files),
        suffix=max([*suffixes, *([] if work.suffix is None else [work.suffix])], default=None),
        form=merged.form or work.form,
        result=_result(place, claim.run, claim.token, merged).to_dict(),
    )


def _settle(place: Place, claim: Claim, outcome: Outcome) -> JobResult:
    """From the decision to the end; each step may be repeated."""
    if outcome.is_changed:
        place.publish(claim.run)
    place.finish(claim.run, claim.increments)
    past = journal.history(
        place.side, claim.run, claim.backups if outcome.is_changed else None
    )  # only a new master makes one too many
    if outcome.is_changed:
        place.drop_backups(claim.run, claim.backups, past.masters)
    result = journal.result_of(outcome.result)
    keep_names(place.side, claim.increments)
    journal.write_done(place.side, claim.run, result)
    journal.forget(place.side, past)
    place.tidy(claim.run)
    return result


def _rehearsed(place: Place, job: Mutate, merge: Merge, options: Mapping[str, str]) -> JobResult:
    """Read increments where they are, and write nothing but, with a token, its result."""
    token = job.token
    listed = _listed(place, job, options)
    if not listed:
        return journal.keep_result(place.side, journal.dry(token), _nothing(place, token))
    readable = [
        (open_storage(increment.root, options_for(increment.root, options)), increment.path)
        for increment in listed
    ]
    merged = merge(_work(place, listed, readable, None, ""))
    counted = replace(
        _result(place, None, token, merged), notes=("dry run: nothing was changed", *merged.notes)
    )
    return journal.keep_result(place.side, journal.dry(token), counted)


def _work(
    place: Place,
    increments: Sequence[Increment],
    readable: Sequence[tuple[Storage, str]],
    target: str | None,
    rejected: str,
) -> Work:
    newest = journal.newest_decided(place.side)
    if newest is not None and is_s3(place.uri):
        master, form = newest.files, newest.form
    else:
        # The record lies in the folder, so that it also holds for a copy without its side folder
        master, form = tuple(place.master_files()), place.form()
    return Work(
        increments=increments,
        readable=readable,
        master=master,
        form=form,
        is_first=newest is None,
        suffix=None if newest is None else newest.suffix,
        side=place.side,
        target=target,
        rejected=rejected,
    )


def _listed(place: Place, job: Mutate, options: Mapping[str, str]) -> list[Increment]:
    listed = list_increments(job.increments, options, lambda path: was_merged(place.side, path))
    inside = [
        found.source
        for found in listed
        if f"{_absolute(found.source)}/".startswith(f"{_absolute(place.uri)}/")
    ]
    if inside:
        raise InvalidInputError(
            f"{inside[0]} lies in the master {place.uri} itself; keep increments in a folder of their own"
        )
    local = (
        []
        if is_s3(place.uri) or not listed
        else [f"{file.root}/{file.path}" for file in place.master_files()]
    )
    _refuse_colons([*(found.source for found in listed if not is_s3(found.root)), *local])
    return in_order(listed, job.order)


def _absolute(uri: str) -> str:
    """Two ways to write one folder are the same text."""
    return uri.partition("://")[2] if is_s3(uri) else os.path.realpath(local_root(uri))


def refuse_tables(place: Place, options: Mapping[str, str], advice: str) -> None:
    """Raise InvalidInputError if a folder is a table: only its log says which files count."""
    storage = open_storage(place.uri, options_for(place.uri, options))
    for kind, folder, ending in _TABLES:
        if any(file.path.endswith(ending) for file in storage.list(folder)):
            raise InvalidInputError(
                f"{place.uri} is {kind} table, of which only its log says which files count: "
                f"{advice}"
            )


def _refuse_colons(files: Sequence[str]) -> None:
    """Of a local file Hadoop makes the name of a checksum's, and takes what is before a colon in it for a scheme."""
    for file in files:
        if ":" in (name := file.rpartition("/")[2]):
            raise InvalidInputError(
                f"{file} cannot be read, because its name has a colon, which Spark's local files may not have: rename it to "
                f"{name.replace(':', '_')!r}. Nothing was changed"
            )


def _result(place: Place, run: int | None, token: str | None, merged: Merged) -> JobResult:
    notes = [*merged.notes, *([BLIND.format(uri=place.uri)] if is_s3(place.uri) else [])]
    return JobResult(
        operation="mutate",
        table=place.uri,
        version=run,
        token=token,
        counts=dict(merged.counts),
        notes=tuple(notes),
        examples=tuple(dict(file) for file in merged.files),
    )


def _nothing(place: Place, token: str | None) -> JobResult:
    return JobResult(
        operation="mutate", table=place.uri, token=token, notes=("there is no increment to merge",)
    )
