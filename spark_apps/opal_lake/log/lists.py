"""The long lists of a state: how commits change them, and their items as JSON (FORMAT, §6)."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from opal_lake import checked, layout
from opal_lake.data.recent import Recent
from opal_lake.data.segment import (
    DataFile,
    LogFile,
    PendingSegment,
    RunFile,
    Segment,
    SideFile,
    log_from_json,
    log_to_json,
    pending_from_json,
    pending_to_json,
    run_from_json,
    run_to_json,
    segment_from_json,
    segment_to_json,
)
from opal_lake.errors import FormatError
from opal_lake.ids import segment_name
from opal_lake.log.commit import (
    Commit,
    Rewrite,
    file_from_json,
    file_to_json,
    ingest_of_key,
    new_file_from_json,
)
from opal_lake.log.sections import GONE, decode_section, is_gone
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_verified

_MAX_SIDES_REMEMBERED = 16
_NO_REWRITE = Rewrite()
_side_files: Recent[tuple[str, SideFile], tuple[Any, ...]] = Recent(max_size=_MAX_SIDES_REMEMBERED)


def ingested_files(storage: Storage, commit: Commit) -> tuple[DataFile, ...]:
    """Return the files that a commit ingested, from its side file if it has one."""
    side = commit.actions.ingested_side
    if side is None:
        return commit.actions.ingested
    items = _side_items(storage, side, _side_item)
    return tuple(item for item in items if isinstance(item, DataFile))


def rewritten_files(storage: Storage, commit: Commit) -> Rewrite:
    """Return the rewrite of a commit, with the files from its side file if it has one.

    Raises FormatError if the files in the side file do not have `side_rows` rows: row ids are
    assigned by that number.
    """
    rewrite = commit.actions.rewrite or _NO_REWRITE
    if rewrite.side is None:
        return rewrite
    listed = _side_rewrite(storage, rewrite, rewrite.side)
    fault = _side_rows_fault(rewrite, listed)
    if fault is not None:
        path = layout.commit_path(commit.version)
        raise FormatError(f"{path}: {fault}; restore the file from a backup")
    return listed


def side_rows_fault(storage: Storage, commit: Commit) -> str | None:
    """Return how a commit's `side_rows` differ from its side file, None if equal.

    I32: `side_rows` equals the rows of the files that the side file adds.
    """
    rewrite = commit.actions.rewrite
    if rewrite is None or rewrite.side is None:
        return None
    return _side_rows_fault(rewrite, _side_rewrite(storage, rewrite, rewrite.side))


def _side_rewrite(storage: Storage, rewrite: Rewrite, side: SideFile) -> Rewrite:
    """Return the rewrite with the added and removed files that its side file lists."""
    items = _side_items(storage, side, _side_item)
    added = tuple(item for item in items if isinstance(item, DataFile))
    removed = tuple(item for item in items if isinstance(item, str))
    return replace(rewrite, add=added, remove=removed)


def _side_rows_fault(rewrite: Rewrite, listed: Rewrite) -> str | None:
    """Return how `side_rows` differ from the rows of the listed files, None if equal."""
    rows = sum(file.rows for file in listed.add)
    if rows == rewrite.side_rows:
        return None
    return f"its side file adds {rows:,} rows, but its `side_rows` are {rewrite.side_rows:,}"


def _side_items(
    storage: Storage, side: SideFile, from_json: Callable[[Any], Any]
) -> tuple[Any, ...]:
    """Return the decoded items of a side file. Recently read ones are remembered."""

    def read() -> tuple[Any, ...]:
        return tuple(decode_section(read_verified(storage, side), side.path, from_json))

    # Each of several lists is folded from the same side file
    return _side_files.get((storage.uri, side), read)


def _side_item(data: Any) -> DataFile | str:
    """Decode an item of a side file: an added file, or the path of a removed one."""
    if isinstance(data, str):
        # The path is not checked: it is only removed from a list, never opened
        return data
    return new_file_from_json(data)


def segment_of_file(file: DataFile) -> Segment:
    """Return the segment of an ingested file: such a file has exactly one."""
    return Segment(id=file.segments[0], rows=file.rows, group=file.group)


def processed_fault(
    storage: Storage, commit: Commit, pending: Mapping[int, Segment | PendingSegment]
) -> str | None:
    """Return how a processed segment differs from the ingested one, None if none does.

    I15: a commit processes segments as they were ingested, by itself or before. `pending` are the
    known segments that were pending before the commit.
    """
    if not commit.actions.processed:
        return None
    ingested_here = {
        file.segments[0]: segment_of_file(file) for file in ingested_files(storage, commit)
    }
    for segment in commit.actions.processed:
        ingested = ingested_here.get(segment.id) or pending.get(segment.id)
        if ingested is None:
            continue  # an unknown segment makes the total of pending segments wrong
        if (segment.rows, segment.group) != (ingested.rows, ingested.group):
            return (
                f"it processes segment {segment_name(segment.id)} as {segment.rows:,} rows of "
                f"group {segment.group}, but the segment was ingested as {ingested.rows:,} rows of "
                f"group {ingested.group}"
            )
    return None


def _pair_from_json(data: list[Any]) -> int:
    """Decode a pair of a text and a number, and return the number."""
    name, number = data
    checked.text(name)
    return checked.count(number)


def _file_changes(storage: Storage, commit: Commit) -> Iterator[tuple[str, DataFile | None]]:
    for file in ingested_files(storage, commit):
        yield file.path, file
    rewritten = rewritten_files(storage, commit)
    for file in _with_row_ids(rewritten.add, commit):
        yield file.path, file
    for path in rewritten.remove:
        yield path, None
    for discarded in commit.actions.discarded:
        yield discarded.path, None


def _with_row_ids(files: Iterable[DataFile], commit: Commit) -> Iterator[DataFile]:
    """Yield the files that a rewrite adds, with the row ids that it reserves for them.

    The ids follow those of rows that become visible, in the order of the files.
    """
    first = (commit.first_row_id or 0) + commit.actions.visible_rows
    for file in files:
        yield replace(file, first_row_id=first)
        first += file.rows


def visible_segments(commit: Commit) -> Iterator[Segment]:
    """Yield the segments that a commit makes visible, with the row ids that they take."""
    base = commit.first_row_id or 0
    for segment in commit.actions.processed:
        yield replace(segment, row_base=base, visible_since=commit.version)
        base += segment.rows


def _segment_changes(_: Storage, commit: Commit) -> Iterator[tuple[int, Segment | None]]:
    """Yield the changes of visible segments.

    Pending segments are in another list, so that no item of either list is ever modified.
    """
    for segment in visible_segments(commit):
        yield segment.id, segment
    if commit.actions.rewrite is not None:
        for gone in commit.actions.rewrite.gone:
            yield gone.id, None


def _visible_from_json(data: Any) -> Segment:
    """Decode a visible segment; raise ValueError if it has no row base."""
    segment = segment_from_json(data)
    if segment.row_base is None:
        raise ValueError(f"segment {segment.id} has no row base")
    return segment


def _pending_changes(
    storage: Storage, commit: Commit
) -> Iterator[tuple[int, PendingSegment | None]]:
    for file in ingested_files(storage, commit):
        segment = PendingSegment(
            id=file.segments[0],
            rows=file.rows,
            group=file.group,
            version=commit.version,
            ingested_us=commit.timestamp_us,
            token=commit.token,
            partition_key=commit.partition_key,
            business_snapshot=commit.business_snapshot,
        )
        yield segment.id, segment
    for processed in commit.actions.processed:
        yield processed.id, None
    for discarded in commit.actions.discarded:
        yield discarded.segment.id, None


def _log_changes(_: Storage, commit: Commit) -> Iterator[tuple[str, LogFile | None]]:
    for log in commit.actions.add_logs:
        if log.version < 0:
            # The events of the commit itself: other logs are merged from those of older versions
            yield log.path, replace(log, version=commit.version)
        else:
            yield log.path, log
    for path in commit.actions.remove_logs:
        yield path, None


def _run_changes(_: Storage, commit: Commit) -> Iterator[tuple[str, RunFile | None]]:
    for run in commit.actions.add_runs:
        yield run.path, run
    for path in commit.actions.remove_runs:
        yield path, None


def _token_changes(_: Storage, commit: Commit) -> Iterator[tuple[str, int]]:
    """Yield the token of a commit, after the tokens that the commit replaced."""
    for token in commit.actions.replaced_tokens:
        yield token, commit.version
    if commit.token:
        yield commit.token, commit.version


def _partition_changes(_: Storage, commit: Commit) -> Iterator[tuple[tuple[str, int], int | None]]:
    if commit.partition_key is not None and commit.number is not None:
        yield (commit.partition_key, commit.number), commit.number
    for ingest in commit.actions.withdrawn:
        yield ingest, None


def _key_from_json(key: Any) -> Hashable:
    """Decode the key in a line that marks an item as gone."""
    if isinstance(key, list):
        return ingest_of_key(key)
    if isinstance(key, int):
        return checked.word(key)
    return checked.text(key)


def _path_of(item: Any) -> Hashable:
    return str(item["path"])


def _first_of(item: Any) -> Hashable:
    key: Hashable = item[0]
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class ListKind:
    """The rules of one long list.

    - `changes` yields the changes of a commit: keys with values, or with None for a removed item.
    - `key_of` returns the key of an item that is given as JSON.
    - `from_json` decodes the value of an item, and `to_json` encodes an item from key and value.
    """

    changes: Callable[[Storage, Commit], Iterator[tuple[Hashable, Any]]]
    key_of: Callable[[Any], Hashable]
    from_json: Callable[[Any], Any]
    to_json: Callable[[Any, Any], Any]

    def change_from_json(self, item: Any) -> tuple[Hashable, Any]:
        """Decode a line: a key with its value, or with None if the item is gone."""
        if is_gone(item):
            return _key_from_json(item[GONE]), None
        value = self.from_json(item)
        return self.key_of(item), value


# In the order in which a checkpoint writes them
LISTS: dict[str, ListKind] = {
    "files": ListKind(
        changes=_file_changes,
        key_of=_path_of,
        from_json=file_from_json,
        to_json=lambda _, file: file_to_json(file),
    ),
    "segments": ListKind(
        changes=_segment_changes,
        key_of=_first_of,
        from_json=_visible_from_json,
        to_json=lambda _, segment: segment_to_json(segment),
    ),
    "pending": ListKind(
        changes=_pending_changes,
        key_of=_first_of,
        from_json=pending_from_json,
        to_json=lambda _, segment: pending_to_json(segment),
    ),
    "logs": ListKind(
        changes=_log_changes,
        key_of=_path_of,
        from_json=log_from_json,
        to_json=lambda _, log: log_to_json(log),
    ),
    "runs": ListKind(
        changes=_run_changes,
        key_of=_path_of,
        from_json=run_from_json,
        to_json=lambda _, run: run_to_json(run),
    ),
    "partitions": ListKind(
        changes=_partition_changes,
        key_of=tuple,
        from_json=_pair_from_json,
        to_json=lambda pair, _: list(pair),
    ),
    "tokens": ListKind(
        changes=_token_changes,
        key_of=_first_of,
        from_json=_pair_from_json,
        to_json=lambda token, version: [token, version],
    ),
}

# The lists that a restore sets back. Tokens and partition keys of undone ingests stay known: a
# retry must not ingest them again. So in `partitions` a restore only brings back withdrawn ingests.
RESTORED_LISTS = ("files", "segments", "pending", "logs", "runs", "partitions")


def list_changes(name: str, storage: Storage, commit: Commit) -> Iterator[tuple[Hashable, Any]]:
    """Yield a commit's changes of a list: keys with values, or with None if removed."""
    yield from LISTS[name].changes(storage, commit)
    restored = commit.actions.restored
    if restored is not None and name in RESTORED_LISTS:
        for changed_list, change in _restored_changes(storage, restored.side):
            if changed_list == name:
                yield change


def restored_paths(storage: Storage, commit: Commit) -> Iterator[str]:
    """Yield the paths of data files, logs and runs that a restore brings back."""
    if commit.actions.restored is None:
        return
    for _, (_, value) in _restored_changes(storage, commit.actions.restored.side):
        if isinstance(value, DataFile | LogFile | RunFile):
            yield value.path


def pending_again(storage: Storage, commit: Commit) -> Iterator[int]:
    """Yield the ids of processed segments that a restore makes pending again."""
    if commit.actions.restored is None:
        return
    for name, (_, value) in _restored_changes(storage, commit.actions.restored.side):
        if name == "pending" and value is not None:
            yield value.id


def _restored_changes(
    storage: Storage, side: SideFile
) -> tuple[tuple[str, tuple[Hashable, Any]], ...]:
    """Return the changes in a restore's side file, each with the name of its list."""
    return _side_items(storage, side, _restored_change)


def _restored_change(line: Any) -> tuple[str, tuple[Hashable, Any]]:
    name, item = checked.listed(line)
    if name not in RESTORED_LISTS:
        raise ValueError(f"a restore cannot change the list {name!r}")
    return name, LISTS[name].change_from_json(item)


def restored_line(name: str, key: Hashable, value: Any) -> list[Any]:
    """Encode a change of a list as a line of a restore's side file."""
    if value is None:
        return [name, {GONE: key}]
    return [name, LISTS[name].to_json(key, value)]
