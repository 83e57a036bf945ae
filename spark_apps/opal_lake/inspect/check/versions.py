"""The files of older versions: savepoints, and all versions that can be read. What the newest one has was looked at with it.

A version differs from the one before it by what its commit brings and takes away. So every file is in the oldest readable version, in a
savepoint or restored version, or was brought by a later commit: each is looked at once, in the first version found that has it.

How rows, events and key-store entries fit together is compared version by version. That takes time for each version and for each row of
it, so at most `COMPARED_VERSIONS` are compared, evenly spaced, and fewer where these have more than `COMPARED_ROWS` together.
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

COMPARED_VERSIONS = 256
COMPARED_ROWS = 20_000_000


@dataclass(slots=True, kw_only=True)
class OlderVersions:
    """What was looked at of versions before the newest: files that this one does not have.

    `compared` are versions whose rows, events and key-store entries were compared with each other.
    `has_damage` says whether one of them, or a merge, has a finding.
    """

    versions: frozenset[int] = frozenset()
    compared: set[int] = field(default_factory=set)
    files: list[DataFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    has_damage: bool = False


def check_older(
    log: CommitLog, kept: Root, commits: Sequence[Commit], content: Content, *, deep: bool
) -> OlderVersions:
    """Check the files of every readable version that the newest one lacks, each once."""
    known = {file.path for file in referenced(content.state)}
    older = OlderVersions(versions=readable_versions(kept) - {kept.version})
    begins, findings_before = _begins(kept), len(content.findings.unique)
    for state in _states(log, kept, commits, known, content):
        check_sizes(state, content.sizes, content.findings, known)
        check_row_bases(state, content.findings)
        fresh = [file for file in state.files.values() if file.path not in known]
        older.files += fresh
        if deep:
            if state.version in begins:
                _compare(state, content)
                older.compared.add(state.version)
            else:
                _check_content(state, fresh, known, content)
        known.update(file.path for file in referenced(state))
    if deep and content.known is not None:
        older.left_out += _check_merges(log, kept, commits, content, content.known)
        others = _evenly_spaced(older.versions - begins, content)
        for version in _until_one_fails(others, findings_before, content):
            for state in _readable_state(log, version, content):
                _compare(state, content)
                older.compared.add(version)
    older.has_damage = len(content.findings.unique) > findings_before
    return older


def _evenly_spaced(versions: frozenset[int], content: Content) -> list[int]:
    """Return the versions to compare: all, where that does not take too long."""
    most = min(COMPARED_VERSIONS, COMPARED_ROWS // max(1, content.rows))
    step = -(-len(versions) // max(1, most))
    return sorted(versions)[:: max(1, step)]


def _until_one_fails(
    versions: Sequence[int], findings_before: int, content: Content
) -> Iterator[int]:
    """Yield versions until there are more findings than before.

    What is wrong in one version mostly is in the next ones too, and each would say it again.
    """
    for done, version in enumerate(versions):
        if len(content.findings.unique) > findings_before:
            return
        content.at_step("older version", done, len(versions))
        yield version


def _check_merges(
    log: CommitLog, kept: Root, commits: Sequence[Commit], content: Content, known: KnownContent
) -> list[str]:
    """Compare what merges removed with what they added; return in words what was left out."""
    check = MergeCheck(content=content, known=known)
    for oldest in _readable_state(log, kept.oldest_version, content):
        check.begin(oldest)
        for commit in commits:
            if commit.version <= kept.oldest_version:
                continue
            if commit.actions.restored is None:
                check.add(commit)
                continue
            for restored in _readable_state(log, commit.version, content):
                check.begin(restored)
    return [*check.notes()]


def readable_versions(kept: Root) -> frozenset[int]:
    """Return the versions that can be read, savepoints among them."""
    window = range(kept.oldest_version, kept.version + 1)
    return frozenset(window) | frozenset(kept.savepoints.values())


def files_of_readable_versions(log: CommitLog, head: Snapshot) -> list[DataFile]:
    """Return the files of all versions that can be read, each once, as commits list them."""
    kept = head.root
    files = dict(head.files)
    for version in sorted(_begins(kept)):
        files |= log.at(version, head).files
    for commit in log.range_after(kept.oldest_version, head.version, head.commits).commits:
        if commit.actions.restored is not None:
            files |= log.at(commit.version, head).files
        brought = ingested_files(log.storage, commit) + rewritten_files(log.storage, commit).add
        files |= {file.path: file for file in brought}
    return [*files.values()]


def _begins(kept: Root) -> frozenset[int]:
    """Return the savepoints and the oldest version: what they have, no commit has to bring."""
    return frozenset({*kept.savepoints.values(), kept.oldest_version} - {kept.version})


def _compare(state: Snapshot, content: Content) -> None:
    """Compare rows, events and key-store entries of a version; files are read once for all."""
    gone = frozenset(segment for segment in content.discarded if segment not in state.segments)
    own = replace(content, state=state, discarded=gone, of_version=state.version)
    LocalCheck(content=own).run(deep=True)


def _states(
    log: CommitLog, kept: Root, commits: Sequence[Commit], known: set[str], content: Content
) -> Iterator[Snapshot]:
    """Yield the versions that together have every file, the oldest first."""
    for version in sorted(_begins(kept)):
        yield from _readable_state(log, version, content)
    for commit in commits:
        is_older = kept.oldest_version < commit.version < kept.version
        if is_older and _brings_unknown(log, commit, known):
            yield from _readable_state(log, commit.version, content)


def _readable_state(log: CommitLog, version: int, content: Content) -> Iterator[Snapshot]:
    """The version with its lists; a finding instead, where it cannot be put together."""
    with content.findings.going_on("I7", f"version {version}"):
        state = log.at(version)
        assert None not in (state.files, state.segments, state.logs, state.runs, state.bases)
        yield state


def _brings_unknown(log: CommitLog, commit: Commit, known: set[str]) -> bool:
    """Whether a commit brings a file that was not yet looked at. A restore may bring any."""
    actions = commit.actions
    if actions.restored is not None:
        return True
    try:
        data = [
            *ingested_files(log.storage, commit),
            *rewritten_files(log.storage, commit).add,
        ]
    except (FormatError, NotFoundError):
        return True  # the version says what is wrong
    brought: list[FileRef] = [*data, *actions.add_logs, *actions.add_runs]
    return any(file.path not in known for file in brought)


def _check_content(
    state: Snapshot, fresh: Sequence[DataFile], known: set[str], content: Content
) -> None:
    findings, sizes, storage = content.findings, content.sizes, state.storage
    reader = FileReader(storage=storage, spec=state.spec, findings=findings)
    for work in file_works(state, sizes, content.keys, fresh):
        rows = reader.rows(work) if content.known is None else content.known.rows(work, reader)
        for _ in rows:
            pass
    facts = SegmentFacts.of(state, frozenset())
    for log in state.logs.values():
        parts = None if log.path in known else content.events.of(log)
        if parts is None:
            continue
        check = LogCheck(log=log, facts=facts, has_floor=state.root.floor is not None)
        for _ in check.pass_on(parts):
            pass
        check.finish(findings)
    ties = 2 * len(state.spec.tie_break)
    for run in state.runs.values():
        if run.path not in known and is_found(run, sizes):
            read = read_run(storage, run, content.keys, ties, findings)
            for _ in read if content.known is None else content.known.entries(run, read):
                pass
