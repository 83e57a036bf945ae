"""The files that are still needed.

Readable versions name some of these files. The others are files of jobs that may yet commit.
"""

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
    """The numbers of jobs by their state.

    - `logged`: jobs with a commit in the log that is still needed.
    - `ended`: jobs that never commit (again).
    - `in_flight`: jobs with a claim that may yet commit.
    - `greatest`: the greatest number in use at the oldest version. Up to it, a number without a
      claim has ended, too: its job can no longer commit.
    """

    logged: frozenset[int]
    ended: frozenset[int]
    in_flight: frozenset[int]
    greatest: int

    def has_ended(self, number: int) -> bool:
        """Return whether the job with a number never commits (again)."""
        return number in self.ended or (number <= self.greatest and number not in self.in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """The files that versions from `oldest` on and savepoints name, as of a head.

    The log and the checkpoints are needed from `begin` on, the version of the checkpoint that
    serves the oldest version. `roots` has the files of each checkpoint, `gathered` the committed
    position of each folder of gathered rows.
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
        """Return the needed files together with those of newer commits."""
        head = self.head
        paths = set(self.paths)
        for commit in commits:
            if commit.version > self.head:
                entry = entry_of(storage, commit)
                head = max(head, entry.version)
                paths.update(entry.paths, entry.sides)
        return replace(self, head=head, paths=frozenset(paths))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """The input of a retention.

    `state` is that of the version that is to become the oldest one. `checkpoints` are the paths of
    the checkpoints, newest first.
    """

    log: CommitLog
    head: Snapshot
    state: Snapshot
    digest: LogDigest
    checkpoints: tuple[str, ...]

    @property
    def erased(self) -> int:
        """The last erasure up to the state's version: the log never begins below it (I34)."""
        return self.digest.last_erasure(self.state.version)

    @property
    def root_versions(self) -> dict[str, int]:
        """The versions of the checkpoints by their paths, newest first."""
        versions: dict[str, int] = {}
        for path in self.checkpoints:
            version = layout.checkpoint_version(path)
            if version is not None:
                versions[path] = version
        return versions


def find_needed(view: LogView, claims: Iterable[int], given_up: frozenset[int]) -> Needed:
    """Return the files that are needed once the view's state is the oldest version.

    `claims` are the claimed numbers. The jobs with `given_up` numbers never commit.
    """
    head, state = view.head, view.state
    oldest = state.version
    root = replace(head.root, oldest_version=oldest)
    root_versions = view.root_versions
    begin = 0
    if oldest:
        checkpointed = log_begin(
            root, root_versions.values(), view.digest.entries, erased=view.erased
        )
        begin = oldest if checkpointed is None else checkpointed
    needed_roots = [path for path, version in root_versions.items() if version >= begin]
    roots = read_roots(view.log.storage, view.digest, needed_roots)
    paths: set[str] = set()
    for entry in view.digest.entries.values():
        # A reader folds the commits from the checkpoint on, with their side files
        if entry.version >= begin:
            paths.update(entry.sides)
        # Files of older commits are needed only if the state has them
        if entry.version > oldest:
            paths.update(entry.paths)
    for root_paths in roots.values():
        paths.update(root_paths)
    paths.update(state_paths(state))
    paths.update(part.path for part in kept_files(state))
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
    gathered = {layout.gathered_folder(name): end for name, end in head.positions.items()}
    return Needed(
        head=head.version,
        begin=begin,
        oldest=oldest,
        savepoints=savepoints,
        paths=frozenset(paths),
        numbers=numbers,
        roots=roots,
        gathered=gathered,
    )


def state_paths(state: Snapshot) -> Iterator[str]:
    """Yield the paths of all files that a version reads, except its checkpoint."""
    for files in (state.files, state.logs, state.runs):
        yield from files
    yield from (base.path for base in state.bases)


def _savepoint_paths(view: LogView, version: int) -> Iterator[str]:
    """Yield the paths of all files that a savepoint below the oldest version needs."""
    state = view.log.at(version, view.head)
    # Commits below the oldest version may expire: a savepoint must not need them
    if state.commits:
        raise FormatError(
            f"{view.log.storage.uri}: the checkpoint of savepoint version {version} is missing; "
            "restore the checkpoint from a backup, or release the savepoint"
        )
    yield from state_paths(state)
    yield from (part.path for part in file_parts(state.sections))
