"""A digest of the log, so that a retention need not read the log again (FORMAT, retention).

A digest is derived, and only retention reads it: without a digest, retention reads the whole log
again. Its first line is {`format`, `table_id`, `version`, `write_id`} of the head at which it was
made. Then come a line for every commit, [version, timestamp_us, number, added paths, side files,
whether it is an erasure], and a line for every checkpoint, [path of the root, paths of its sections
and bases].

A digest is trusted if its name holds its checksum, and its last commit has the same write id in the
log: all earlier commits follow from that one. A retention deletes the stored digests before it
writes its own.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from opal_lake import checked, layout
from opal_lake.decoding import decoding
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.log.checkpoint import decode_root
from opal_lake.log.commit import ERASE, FORMAT_VERSION, Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.lists import ingested_files, restored_paths, rewritten_files
from opal_lake.log.sections import decode_section, encode_section, file_parts
from opal_lake.log.snapshot import Snapshot
from opal_lake.storage.protocol import READERS, Storage
from opal_lake.storage.verified import missing_error, read_sealed

NEW_COMMITS = 8  # that the stored digest lacks: with fewer, a new digest is not worth a request


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The files of a commit: those that it added, and its side files.

    `paths` includes files that later commits replaced; `sides` are read when the commit is folded.
    """

    version: int
    timestamp_us: int
    number: int | None
    paths: tuple[str, ...]
    sides: tuple[str, ...]
    is_erasure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDigest:
    """All commits of the log up to a head, and the paths of each checkpoint.

    `stored` are the paths of the stored digests, and `fresh` counts the commits that these do not
    have. `modified_us` is the store's time of each commit.
    """

    entries: Mapping[int, Entry]
    roots: Mapping[str, tuple[str, ...]]
    stored: tuple[str, ...] = ()
    fresh: int = 0
    modified_us: Mapping[int, int] = field(default_factory=dict)

    def numbers(self, first: int = 0) -> frozenset[int]:
        """Return the numbers of the jobs that committed a version from `first` on."""
        numbers: set[int] = set()
        for entry in self.entries.values():
            if entry.version >= first and entry.number is not None:
                numbers.add(entry.number)
        return frozenset(numbers)

    def last_erasure(self, at_most: int) -> int:
        """Return the newest erasure in the log up to a version, 0 if there is none."""
        erasures = [entry.version for entry in self.entries.values() if entry.is_erasure]
        return max((version for version in erasures if version <= at_most), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A digest as it lies in the store."""

    version: int = -1
    write_id: str = ""
    entries: Mapping[int, Entry] = field(default_factory=dict)
    roots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_digest(log: CommitLog, head: Snapshot) -> LogDigest:
    """Return the digest of the log up to the head.

    Reads each commit that the stored digest does not have.
    """
    paths = [entry.path for entry in log.storage.list(layout.DIGESTS)]
    stored = _read_stored(log, head, paths)
    digest = LogDigest(entries=stored.entries, roots=stored.roots, stored=tuple(paths))
    return completed(log, head, digest)


def completed(log: CommitLog, head: Snapshot, digest: LogDigest) -> LogDigest:
    """Return the digest updated to the head: with newer commits, without deleted ones."""
    known_commits = {commit.version: commit for commit in head.commits}
    modified_us: dict[int, int] = {}
    for logged in log.storage.list(layout.LOG):
        version = layout.commit_version(logged.path)
        if version is not None and version <= head.version:
            modified_us[version] = logged.modified_us
    known = [version for version in modified_us if version in digest.entries]
    fresh = [version for version in modified_us if version not in digest.entries]

    def read_entry(version: int) -> Entry:
        commit = known_commits.get(version)
        if commit is None:
            commit = log.read_commit(version)
        return entry_of(log.storage, commit)

    entries = {version: digest.entries[version] for version in known}
    with ThreadPoolExecutor(READERS) as pool:
        entries.update(zip(fresh, pool.map(read_entry, fresh), strict=True))
    _check_whole(log, head, entries)
    fresh_count = digest.fresh + len(fresh)
    return replace(digest, entries=entries, fresh=fresh_count, modified_us=modified_us)


def _check_whole(log: CommitLog, head: Snapshot, entries: Mapping[int, Entry]) -> None:
    """Raise FormatError for a missing commit: its files would count as unused."""
    for version in range(head.root.oldest_version + 1, head.version + 1):
        if version not in entries:
            advice = "the files that this version needs are unknown; restore it from a backup"
            raise missing_error(log.storage, layout.commit_path(version), advice)


def entry_of(storage: Storage, commit: Commit) -> Entry:
    """Return the entry of a commit in a digest."""
    actions = commit.actions
    sides: list[str] = []
    if actions.ingested_side is not None:
        sides.append(actions.ingested_side.path)
    if actions.rewrite is not None and actions.rewrite.side is not None:
        sides.append(actions.rewrite.side.path)
    if actions.restored is not None:
        sides.append(actions.restored.side.path)
    paths = [file.path for file in ingested_files(storage, commit)]
    paths += [file.path for file in rewritten_files(storage, commit).add]
    paths += [log.path for log in actions.add_logs]
    paths += [run.path for run in actions.add_runs]
    paths += restored_paths(storage, commit)
    if actions.restored is not None:
        paths += [base.path for base in actions.restored.bases]
    return Entry(
        version=commit.version,
        timestamp_us=commit.timestamp_us,
        number=commit.number,
        paths=tuple(paths),
        sides=tuple(sides),
        is_erasure=commit.operation == ERASE,
    )


def read_roots(
    storage: Storage, digest: LogDigest, checkpoints: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Return the sections and bases of checkpoints, by the paths of their roots.

    Files that the lists in the sections name are not among these: commits name them, too.
    """
    wanted = frozenset(checkpoints)
    roots = {path: parts for path, parts in digest.roots.items() if path in wanted}
    fresh = sorted(wanted - roots.keys())
    with ThreadPoolExecutor(READERS) as pool:
        parts_of_fresh = pool.map(partial(_parts_of_checkpoint, storage), fresh)
        roots.update(zip(fresh, parts_of_fresh, strict=True))
    return roots


def _parts_of_checkpoint(storage: Storage, path: str) -> tuple[str, ...]:
    """Return the paths of the sections and bases that a root names."""
    root, sections = decode_root(read_sealed(storage, path), f"{storage.uri}/{path}")
    bases = Snapshot(storage, root, sections, ()).bases
    paths = [part.path for part in file_parts(sections)]
    paths += [base.path for base in bases]
    return tuple(paths)


def write_digest(storage: Storage, digest: LogDigest, head: Snapshot, begin: int) -> None:
    """Store the digest of the log from version `begin` on, instead of the stored ones."""
    header = {
        "format": FORMAT_VERSION,
        "table_id": head.root.table_id,
        "version": head.version,
        "write_id": head.root.write_id,
    }
    entries = [_to_json(entry) for entry in digest.entries.values() if entry.version >= begin]
    roots = [[path, list(names)] for path, names in digest.roots.items()]
    data = encode_section([header, *entries, *roots], lambda item: item)
    # Deleted before the new one is written: a damaged digest may have the same name
    storage.delete(digest.stored)
    storage.put_if_absent(layout.digest_path(head.version, zlib.crc32(data)), data)


def _to_json(entry: Entry) -> list[Any]:
    return [
        entry.version,
        entry.timestamp_us,
        entry.number,
        list(entry.paths),
        list(entry.sides),
        entry.is_erasure,
    ]


def _read_stored(log: CommitLog, head: Snapshot, paths: Sequence[str]) -> _Stored:
    """Return the newest digest that can be trusted, an empty one if none can."""
    for path in paths:
        try:
            stored = _decoded(log.storage, path, head)
            if stored is not None and _write_id(log, head, stored.version) == stored.write_id:
                return stored
        except (FormatError, NotFoundError, ValueError):
            continue  # damaged, or deleted by another retention
    return _Stored()


def _write_id(log: CommitLog, head: Snapshot, version: int) -> str:
    """Return the write id that the log has for a version."""
    if version == head.version:
        return head.root.write_id
    for commit in head.commits:
        if commit.version == version:
            return commit.write_id
    return log.read_commit(version).write_id


def _decoded(storage: Storage, path: str, head: Snapshot) -> _Stored | None:
    """Decode a digest; None if it is damaged, of another table or of a later head."""
    data = read_sealed(storage, path)
    if layout.digest_checksum(path) != zlib.crc32(data):
        return None
    header, *lines = decode_section(data, path, lambda item: item)
    with decoding(path, "a digest", "delete it; it is derived and is written again"):
        has_format = header["format"] == FORMAT_VERSION
        is_of_table = header["table_id"] == head.root.table_id
        if not has_format or not is_of_table or header["version"] > head.version:
            return None
        entries: dict[int, Entry] = {}
        roots: dict[str, tuple[str, ...]] = {}
        for line in lines:
            # A line of a checkpoint has two parts, a line of a commit six
            if len(line) == 2:
                roots[checked.text(line[0])] = _texts(line[1])
            elif len(line) > 2:
                entry = _from_json(line)
                entries[entry.version] = entry
        return _Stored(
            version=checked.count(header["version"]),
            write_id=checked.text(header["write_id"]),
            entries=entries,
            roots=roots,
        )


def _from_json(line: Sequence[Any]) -> Entry:
    version, timestamp_us, number, paths, sides, is_erasure = line
    return Entry(
        version=checked.count(version),
        timestamp_us=checked.word(timestamp_us),
        number=None if number is None else checked.count(number),
        paths=_texts(paths),
        sides=_texts(sides),
        is_erasure=checked.flag(is_erasure),
    )


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(checked.text(value) for value in checked.listed(values))
