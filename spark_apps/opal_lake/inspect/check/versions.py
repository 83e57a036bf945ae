"""The files of older versions: of savepoints, and of all versions that can be read.

A version differs from the one before it by what its commit adds and removes. So every file is in
the oldest readable version, in a savepoint or restored version, or was added by a later commit:
each is checked once, in the first version that has it. Files of the newest version were checked
with it.

How rows, events and key-store entries fit together is compared version by version. That takes time
for each version and for each of its rows. So at most `compared_versions` are compared, evenly
spaced, and fewer if these have more than `compared_rows` together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from opal_lake.data.segment import DataFile
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.inspect.check.content.events import LogCheck
from opal_lake.inspect.check.content.in_process import (
    Content,
    FileReader,
    KnownContent,
    LocalCheck,
    file_works,
    read_run,
)
from opal_lake.inspect.check.content.ranges import SegmentFacts
from opal_lake.inspect.check.files import check_row_bases, check_sizes, is_found, referenced
from opal_lake.inspect.check.merges import MergeCheck
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.lists import ingested_files, rewritten_files
from opal_lake.log.snapshot import Root, Snapshot
from opal_lake.storage.verified import FileRef


@dataclass(slots=True, kw_only=True)
class OlderVersions:
    """The extent of a check of older versions: the files that only these have.

    `compared` are versions whose rows, events and key-store entries were compared with each other.
    `has_damage` is true if one of them, or a merge, has a finding.
    """

    versions: frozenset[int] = frozenset()
    compared: set[int] = field(default_factory=set)
    files: list[DataFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    has_damage: bool = False


def check_older(
    log: CommitLog, newest: Root, commits: Sequence[Commit], content: Content, *, deep: bool
) -> OlderVersions:
    """Check the files that only older readable versions have, each file once.

    With `deep`, their content is checked too, and some versions are compared as a whole.
    """
    known = {file.path for file in referenced(content.state)}
    older = OlderVersions(versions=readable_versions(newest) - {newest.version})
    starts = _starts(newest)
    findings_before = len(content.findings.unique)
    for state in _states(log, newest, commits, known, content):
        check_sizes(state, content.sizes, content.findings, known)
        check_row_bases(state, content.findings)
        unchecked = [file for file in state.files.values() if file.path not in known]
        older.files += unchecked
        if deep and state.version in starts:
            _compare(state, content)
            older.compared.add(state.version)
        elif deep:
            _check_content(state, unchecked, known, content)
        known.update(file.path for file in referenced(state))
    if deep and content.known is not None:
        older.left_out += _check_merges(log, newest, commits, content, content.known)
        to_compare = _evenly_spaced(older.versions - starts, content)
        for version in _until_one_fails(to_compare, findings_before, content):
            # One state, or none if the version cannot be put together
            for state in _readable_state(log, version, content):
                _compare(state, content)
                older.compared.add(version)
    older.has_damage = len(content.findings.unique) > findings_before
    return older


def _evenly_spaced(versions: frozenset[int], content: Content) -> list[int]:
    """Return the versions to compare: all, unless that takes too long."""
    tuning = content.tuning
    most = min(tuning.compared_versions, tuning.compared_rows // max(1, content.rows))
    step = -(-len(versions) // max(1, most))
    return sorted(versions)[:: max(1, step)]


def _until_one_fails(
    versions: Sequence[int], findings_before: int, content: Content
) -> Iterator[int]:
    """Yield versions until there are more findings than before.

    Most damage of a version is in the next versions, too, and each would report it again.
    """
    for done, version in enumerate(versions):
        if len(content.findings.unique) > findings_before:
            return
        content.at_step("older version", done, len(versions))
        yield version


def _check_merges(
    log: CommitLog, newest: Root, commits: Sequence[Commit], content: Content, known: KnownContent
) -> list[str]:
    """Compare what merges removed and added; return what was left out, in words."""
    check = MergeCheck(content=content, known=known)
    for oldest in _readable_state(log, newest.oldest_version, content):
        check.begin(oldest)
        for commit in commits:
            if commit.version <= newest.oldest_version:
                continue
            if commit.actions.restored is None:
                check.add(commit)
                continue
            # A restore replaces the logs and runs, so the comparison begins again there
            for restored in _readable_state(log, commit.version, content):
                check.begin(restored)
    return [*check.notes()]


def readable_versions(newest: Root) -> frozenset[int]:
    """Return the versions that can be read, savepoints among them."""
    window = range(newest.oldest_version, newest.version + 1)
    return frozenset(window) | frozenset(newest.savepoints.values())


def files_of_readable_versions(log: CommitLog, head: Snapshot) -> list[DataFile]:
    """Return the files of all readable versions, each once, as commits list them."""
    newest = head.root
    files = dict(head.files)
    for version in sorted(_starts(newest)):
        files |= log.at(version, head).files
    for commit in log.range_after(newest.oldest_version, head.version, head.commits).commits:
        if commit.actions.restored is not None:
            files |= log.at(commit.version, head).files
        added = ingested_files(log.storage, commit) + rewritten_files(log.storage, commit).add
        files |= {file.path: file for file in added}
    return [*files.values()]


def _starts(newest: Root) -> frozenset[int]:
    """Return savepoints and the oldest version, whose files no readable commit adds."""
    return frozenset({*newest.savepoints.values(), newest.oldest_version} - {newest.version})


def _compare(state: Snapshot, content: Content) -> None:
    """Compare rows, events and key-store entries of a version."""
    gone = frozenset(segment for segment in content.discarded if segment not in state.segments)
    own = replace(content, state=state, discarded=gone, of_version=state.version)
    LocalCheck(content=own).run(deep=True)


def _states(
    log: CommitLog, newest: Root, commits: Sequence[Commit], known: set[str], content: Content
) -> Iterator[Snapshot]:
    """Yield the versions that together have every file, the oldest first.

    `known` grows while they are checked.
    """
    for version in sorted(_starts(newest)):
        yield from _readable_state(log, version, content)
    for commit in commits:
        is_older = newest.oldest_version < commit.version < newest.version
        if is_older and _adds_unknown(log, commit, known):
            yield from _readable_state(log, commit.version, content)


def _readable_state(log: CommitLog, version: int, content: Content) -> Iterator[Snapshot]:
    """Yield a version with its lists; report it instead if it cannot be put together."""
    with content.findings.going_on("I7", f"version {version}"):
        state = log.at(version)
        assert None not in (state.files, state.segments, state.logs, state.runs, state.bases)
        yield state


def _adds_unknown(log: CommitLog, commit: Commit, known: set[str]) -> bool:
    """Return whether a commit may add a file that is not checked yet."""
    actions = commit.actions
    if actions.restored is not None:
        return True
    try:
        data = [
            *ingested_files(log.storage, commit),
            *rewritten_files(log.storage, commit).add,
        ]
    except (FormatError, NotFoundError):
        return True  # reported when the version is read
    added: list[FileRef] = [*data, *actions.add_logs, *actions.add_runs]
    return any(file.path not in known for file in added)


def _check_content(
    state: Snapshot, fresh: Sequence[DataFile], known: set[str], content: Content
) -> None:
    """Check the content of files that are not known yet, without comparing them."""
    findings, storage = content.findings, state.storage
    reader = FileReader(storage=storage, spec=state.spec, findings=findings)
    for work in file_works(state, content.sizes, content.keys, fresh):
        if content.known is None:
            rows = reader.rows(work)
        else:
            rows = content.known.rows(work, reader)
        _exhaust(rows)
    facts = SegmentFacts.of(state, frozenset())
    for log in state.logs.values():
        parts = None if log.path in known else content.events.of(log)
        if parts is None:
            continue
        check = LogCheck(log=log, facts=facts, has_floor=state.root.floor is not None)
        _exhaust(check.pass_on(parts))
        check.finish(findings)
    ties = 2 * len(state.spec.tie_break)
    for run in state.runs.values():
        if run.path in known or not is_found(run, content.sizes):
            continue
        entries = read_run(storage, run, content.keys, ties, findings)
        if content.known is not None:
            entries = content.known.entries(run, entries)
        _exhaust(entries)


def _exhaust(checked: Iterator[object]) -> None:
    """Read an iterator to its end: it checks each part that it yields."""
    for _ in checked:
        pass
