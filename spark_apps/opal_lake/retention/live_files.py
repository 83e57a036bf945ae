"""What is still needed: the files that some readable version names, and the numbers of jobs whose files may yet be named."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from opal_lake import layout
from opal_lake.errors import FormatError
from opal_lake.log.checkpoint import kept_files
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.sections import file_parts
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.version_window import log_begin
from opal_lake.retention.log_digest import LogDigest, entry_of, read_roots
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

    The log and the checkpoints are kept from `begin` on, which is the checkpoint that serves the oldest version. `roots` says
    what each checkpoint names, `gathered` how far each folder of gathered rows is committed.
    """

    head: int
    begin: int
    oldest: int
    savepoints: frozenset[int]
    paths: frozenset[str]
    numbers: Numbers
    roots: Mapping[str, tuple[str, ...]]
    gathered: Mapping[str, int]

    def grown(self, storage: Storage, commits: Iterable[Commit]) -> "Needed":
        """With what came since."""
        new = [entry_of(storage, commit) for commit in commits if commit.version > self.head]
        return replace(
            self,
            head=max([self.head, *(entry.version for entry in new)]),
            paths=self.paths.union(path for entry in new for path in (*entry.paths, *entry.sides)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """What retention looks at: a head, the state of what is to be the oldest version, the log's digest, the paths of checkpoints."""

    log: CommitLog
    head: Snapshot
    state: Snapshot
    digest: LogDigest
    checkpoints: tuple[str, ...]

    @property
    def root_versions(self) -> dict[str, int]:
        """Versions of the checkpoints, newest first."""
        versions = {path: layout.checkpoint_version(path) for path in self.checkpoints}
        return {path: version for path, version in versions.items() if version is not None}


def find_needed(view: LogView, claims: Iterable[int], given_up: frozenset[int]) -> Needed:
    """What is needed if the state were the oldest version and these numbers were given up."""
    head, state = view.head, view.state
    oldest, entries = state.version, view.digest.entries.values()
    root = replace(head.root, oldest_version=oldest)
    checkpointed = (
        log_begin(root, view.root_versions.values(), view.digest.entries) if oldest else 0
    )
    begin = oldest if checkpointed is None else checkpointed
    roots = read_roots(
        view.log.storage,
        view.digest,
        (path for path, version in view.root_versions.items() if version >= begin),
    )
    paths = {path for entry in entries if entry.version >= begin for path in entry.sides}
    paths |= {path for entry in entries if entry.version > oldest for path in entry.paths}
    paths |= {path for named in roots.values() for path in named}
    paths |= {*state_paths(state), *(part.path for part in kept_files(state))}
    savepoints = frozenset(root.savepoints.values())
    for version in savepoints:
        if version < oldest:
            paths.update(_savepoint_paths(view, version))
    ended = view.digest.numbers() | given_up | head.root.abandoned
    numbers = Numbers(
        logged=view.digest.numbers(begin),
        ended=ended,
        in_flight=frozenset(claims) - ended,
        greatest=state.root.greatest_number,
    )
    return Needed(
        head=head.version,
        begin=begin,
        oldest=oldest,
        savepoints=savepoints,
        paths=frozenset(paths),
        numbers=numbers,
        roots=roots,
        gathered={
            layout.gathered_folder(name): position for name, position in head.positions.items()
        },
    )


def state_paths(state: Snapshot) -> Iterator[str]:
    """All that a version reads, but for its checkpoint."""
    for files in (state.files, state.logs, state.runs):
        yield from files
    yield from (base.path for base in state.bases)


def _savepoint_paths(view: LogView, version: int) -> Iterator[str]:
    state = view.log.at(version, view.head)
    if state.commits:
        raise FormatError(
            f"{view.log.storage.uri}: savepoint {version} has lost its checkpoint; restore it from a backup, or release it"
        )
    yield from state_paths(state)
    yield from (part.path for part in file_parts(state.sections))
