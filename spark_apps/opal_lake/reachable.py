"""What is still needed: the files that some readable version names, and the numbers of jobs whose files may yet be named."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from opal_lake import layout
from opal_lake.checkpoint import checkpoint_versions, decode_root, touched_sections
from opal_lake.commit import Commit
from opal_lake.commit_log import CommitLog
from opal_lake.errors import FormatError
from opal_lake.readable import log_begin
from opal_lake.snapshot import Snapshot, ingested_files, rewritten_files
from opal_lake.storage.protocol import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Numbers of jobs: `ended` ones never commit (again), `logged` ones have a commit from the oldest version on.

    Up to `greatest`, which was used in the oldest version, a number without a claim has ended too: its job could not commit any more.
    """

    logged: frozenset[int]
    ended: frozenset[int]
    in_flight: frozenset[int]
    greatest: int

    def has_ended(self, number: int) -> bool:
        return number in self.ended or (number <= self.greatest and number not in self.in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """As of a head: everything that versions from `oldest` on and savepoints name.

    The log and the checkpoints are kept from `begin` on, which is the checkpoint that serves the oldest version.
    """

    head: int
    begin: int
    oldest: int
    oldest_us: int
    savepoints: frozenset[int]
    paths: frozenset[str]
    numbers: Numbers

    def grown(self, storage: Storage, commits: Iterable[Commit]) -> "Needed":
        """With what came since."""
        new = [commit for commit in commits if commit.version > self.head]
        return replace(
            self,
            head=max([self.head, *(commit.version for commit in new)]),
            paths=self.paths.union(path for commit in new for path in commit_paths(commit, storage)),
        )


def find_needed(log: CommitLog, head: Snapshot, oldest: int, claims: Iterable[int], given_up: frozenset[int]) -> Needed:
    """What is needed if the oldest version were that one and these numbers were given up."""
    state, physical = log.at(oldest), log.commits_after(-1, head.version)
    root = replace(head.root, oldest_version=oldest)
    found = log_begin(root, checkpoint_versions(log.storage), {commit.version for commit in physical}) if oldest else 0
    begin = oldest if found is None else found
    commits = [commit for commit in physical if commit.version >= begin]
    paths = {path for commit in commits for path in _side_paths(commit)}
    paths |= {path for commit in commits if commit.version > oldest for path in commit_paths(commit, log.storage)}
    paths |= {*state_paths(state), *_checkpoint_paths(log.storage, begin), *_kept_sections(state)}
    savepoints = frozenset(root.savepoints.values())
    for version in savepoints:
        if version < oldest:
            paths.update(_savepoint_paths(log, version))
    ended = _numbers(physical) | given_up | head.root.abandoned
    numbers = Numbers(logged=_numbers(commits), ended=ended, in_flight=frozenset(claims) - ended, greatest=state.root.greatest_number)
    return Needed(
        head=head.version,
        begin=begin,
        oldest=oldest,
        oldest_us=state.root.timestamp_us,
        savepoints=savepoints,
        paths=frozenset(paths),
        numbers=numbers,
    )


def _numbers(commits: Iterable[Commit]) -> frozenset[int]:
    return frozenset(commit.number for commit in commits if commit.number is not None)


def state_paths(state: Snapshot) -> Iterator[str]:
    """All that a version reads, but for its checkpoint."""
    for files in (state.files, state.logs, state.runs):
        yield from files
    yield from (base.path for base in state.bases.values())


def _kept_sections(state: Snapshot) -> Iterator[str]:
    """Of the checkpoint below, what one of this very version would name again."""
    touched = touched_sections(state.commits)
    return (ref.path for name, ref in state.sections.items() if name not in touched)


def commit_paths(commit: Commit, storage: Storage) -> Iterator[str]:
    """The files that a commit brought, also those that later ones replaced."""
    actions = commit.actions
    yield from _side_paths(commit)
    yield from (file.path for file in (*ingested_files(storage, commit), *rewritten_files(storage, commit).add))
    yield from (log.path for log in actions.add_logs)
    yield from (run.path for run in actions.add_runs)


def _side_paths(commit: Commit) -> Iterator[str]:
    """Whoever folds the commit reads these."""
    actions = commit.actions
    return (side.path for side in (actions.ingested_side, actions.rewrite.side if actions.rewrite else None) if side)


def _checkpoint_paths(storage: Storage, begin: int) -> Iterator[str]:
    """What the checkpoints from a version on consist of; what they list, commits brought."""
    read: set[str] = set()
    for found in storage.list(layout.CHECKPOINTS):
        version = layout.checkpoint_version(found.path)
        if version is None or version < begin:
            return
        root, sections = decode_root(storage.get(found.path), found.path)
        yield from (ref.path for ref in sections.values())
        if "bases" in sections and sections["bases"].path not in read:
            read.add(sections["bases"].path)
            yield from (base.path for base in Snapshot(storage, root, sections, ()).bases.values())


def _savepoint_paths(log: CommitLog, version: int) -> Iterator[str]:
    state = log.at(version)
    if state.commits:
        raise FormatError(f"{log.storage.uri}: savepoint {version} has lost its checkpoint; restore it from a backup, or release it")
    yield from state_paths(state)
    yield from (ref.path for ref in state.sections.values())
