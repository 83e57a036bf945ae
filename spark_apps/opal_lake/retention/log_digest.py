"""What retention has read of the log, so that it need not read it again (FORMAT, retention).

Derived, and for retention alone: without a digest the whole log is read once more. The first line
is {`format`, `table_id`, `version`, `write_id`} of the head at which it was made. Then follow, for
every commit from the begin of the log on, [version, timestamp_us, number, paths that it brought,
its side files], and for every checkpoint [path of the root, paths of its sections and bases]. A
digest is believed if its name holds its checksum and the log has the very commit that it ends with,
as all below that one follows from it. A retention deletes the other digests before it writes its
own.
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
from opal_lake.log.commit import FORMAT_VERSION, Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.lists import ingested_files, restored_paths, rewritten_files
from opal_lake.log.sections import decode_section, encode_section, file_parts
from opal_lake.log.snapshot import Snapshot
from opal_lake.storage.protocol import READERS, Storage
from opal_lake.storage.verified import missing_error, read_sealed

NEW_COMMITS = 8  # from so many on a new digest is worth a request


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Of a commit: the files that it brought, also those that later ones replaced; `sides` are read when the commit is folded."""

    version: int
    timestamp_us: int
    number: int | None
    paths: tuple[str, ...]
    sides: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDigest:
    """All commits of the log up to a head, by version; and the paths that each checkpoint names. `fresh` were not in the stored one.

    `modified_us` says when the store got each commit.
    """

    entries: Mapping[int, Entry]
    roots: Mapping[str, tuple[str, ...]]
    stored: tuple[str, ...] = ()
    fresh: int = 0
    modified_us: Mapping[int, int] = field(default_factory=dict)

    def numbers(self, first: int = 0) -> frozenset[int]:
        """Those that commits from a version on carry."""
        return frozenset(
            entry.number
            for entry in self.entries.values()
            if entry.version >= first and entry.number is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A digest as it lies in the store."""

    version: int = -1
    write_id: str = ""
    entries: Mapping[int, Entry] = field(default_factory=dict)
    roots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_digest(log: CommitLog, head: Snapshot) -> LogDigest:
    """Of every commit that the log has up to the head; those that no stored digest knows are read, each once."""
    paths = [entry.path for entry in log.storage.list(layout.DIGESTS)]
    stored = _read_stored(log, head, paths)
    return completed(
        log, head, LogDigest(entries=stored.entries, roots=stored.roots, stored=tuple(paths))
    )


def completed(log: CommitLog, head: Snapshot, digest: LogDigest) -> LogDigest:
    """Updated to the head: with newer commits, without deleted ones."""
    known = {commit.version: commit for commit in head.commits}
    logged = {
        layout.commit_version(entry.path): entry.modified_us
        for entry in log.storage.list(layout.LOG)
    }
    versions = [version for version in logged if version is not None and version <= head.version]
    fresh = [version for version in versions if version not in digest.entries]

    def entry(version: int) -> Entry:
        return entry_of(
            log.storage, known[version] if version in known else log.read_commit(version)
        )

    with ThreadPoolExecutor(READERS) as pool:
        entries = {
            version: digest.entries[version] for version in versions if version in digest.entries
        }
        entries |= zip(fresh, pool.map(entry, fresh), strict=True)
    _check_whole(log, head, entries)
    modified_us = {version: logged[version] for version in versions}
    return replace(
        digest, entries=entries, fresh=digest.fresh + len(fresh), modified_us=modified_us
    )


def _check_whole(log: CommitLog, head: Snapshot, entries: Mapping[int, Entry]) -> None:
    """The files of a missing commit would count as unused."""
    gone = [
        version
        for version in range(head.root.oldest_version + 1, head.version + 1)
        if version not in entries
    ]
    if gone:
        mend = "nobody can tell which files it needs; restore the file from a backup"
        raise missing_error(log.storage, layout.commit_path(gone[0]), mend)


def entry_of(storage: Storage, commit: Commit) -> Entry:
    """What retention asks of a commit."""
    actions = commit.actions
    named = (
        actions.ingested_side,
        actions.rewrite and actions.rewrite.side,
        actions.restored and actions.restored.side,
    )
    sides = [side.path for side in named if side]
    paths = [
        file.path
        for file in (*ingested_files(storage, commit), *rewritten_files(storage, commit).add)
    ]
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
    )


def read_roots(
    storage: Storage, digest: LogDigest, checkpoints: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """What these checkpoints consist of, by their paths; what their lists name, commits brought."""
    paths = frozenset(checkpoints)
    roots = {path: names for path, names in digest.roots.items() if path in paths}
    fresh = sorted(paths - roots.keys())
    with ThreadPoolExecutor(READERS) as pool:
        return roots | dict(zip(fresh, pool.map(partial(_root_names, storage), fresh), strict=True))


def _root_names(storage: Storage, path: str) -> tuple[str, ...]:
    root, sections = decode_root(read_sealed(storage, path), f"{storage.uri}/{path}")
    bases = Snapshot(storage, root, sections, ()).bases
    return (*(part.path for part in file_parts(sections)), *(base.path for base in bases))


def write_digest(storage: Storage, digest: LogDigest, head: Snapshot, begin: int) -> None:
    """Store what is known of the log from a version on, in the place of what was stored before."""
    table = {
        "format": FORMAT_VERSION,
        "table_id": head.root.table_id,
        "version": head.version,
        "write_id": head.root.write_id,
    }
    entries = [_to_json(entry) for entry in digest.entries.values() if entry.version >= begin]
    roots = [[path, list(names)] for path, names in digest.roots.items()]
    data = encode_section([table, *entries, *roots], lambda item: item)
    storage.delete(digest.stored)  # first: a damaged one may have the very name
    storage.put_if_absent(layout.digest_path(head.version, zlib.crc32(data)), data)


def _to_json(entry: Entry) -> list[Any]:
    return [entry.version, entry.timestamp_us, entry.number, list(entry.paths), list(entry.sides)]


def _read_stored(log: CommitLog, head: Snapshot, paths: Sequence[str]) -> _Stored:
    """The newest one that can be believed; an empty one where there is none."""
    for path in paths:
        try:
            stored = _decoded(log.storage, path, head)
            if stored is not None and _write_id(log, head, stored.version) == stored.write_id:
                return stored
        except (FormatError, NotFoundError, ValueError):
            continue  # damaged, or taken away by another retention
    return _Stored()


def _write_id(log: CommitLog, head: Snapshot, version: int) -> str:
    known = {commit.version: commit.write_id for commit in head.commits} | {
        head.version: head.root.write_id
    }
    return known[version] if version in known else log.read_commit(version).write_id


def _decoded(storage: Storage, path: str, head: Snapshot) -> _Stored | None:
    data = read_sealed(storage, path)
    if layout.digest_checksum(path) != zlib.crc32(data):
        return None
    table, *lines = decode_section(data, path, lambda item: item)
    with decoding(path, "a digest", "delete it, it is derived"):
        if (table["format"], table["table_id"]) != (FORMAT_VERSION, head.root.table_id) or table[
            "version"
        ] > head.version:
            return None
        entries = [_from_json(line) for line in lines if len(line) > 2]
        return _Stored(
            version=checked.count(table["version"]),
            write_id=checked.text(table["write_id"]),
            entries={entry.version: entry for entry in entries},
            roots={checked.text(line[0]): _texts(line[1]) for line in lines if len(line) == 2},
        )


def _from_json(line: Sequence[Any]) -> Entry:
    version, timestamp_us, number, paths, sides = line
    return Entry(
        version=checked.count(version),
        timestamp_us=checked.word(timestamp_us),
        number=None if number is None else checked.count(number),
        paths=_texts(paths),
        sides=_texts(sides),
    )


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(checked.text, checked.listed(values)))
