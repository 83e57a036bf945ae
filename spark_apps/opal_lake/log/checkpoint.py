"""Checkpoints: the folded state as a sealed root and the sections that it names (FORMAT, §6).

A checkpoint is derived: deleting one loses nothing. `commit_log` writes one every
`checkpoint_commits` versions and after a restore. A compaction writes one at its end; retention and
savepoints write one where they need it.
"""

import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opal_lake import checked, layout
from opal_lake.data.segment import LogFile
from opal_lake.decoding import decoding
from opal_lake.definition.business_snapshots import business_from_json, business_to_json
from opal_lake.definition.table_spec import spec_from_json, spec_to_json
from opal_lake.errors import FormatError
from opal_lake.events.bitmap import BitmapBase, base_to_json
from opal_lake.events.segment_log import Events
from opal_lake.log.commit import (
    ERASE,
    FORMAT_VERSION,
    Commit,
    canonical_json,
    check_format,
    rows_by_group,
    seal,
    unseal,
)
from opal_lake.log.lists import LISTS, RESTORED_LISTS, ListKind
from opal_lake.log.sections import (
    MERGE_RATIO,
    InlinePart,
    Lines,
    Part,
    SectionRef,
    Sections,
    add_line,
    decode_part,
    encode_part,
    encode_section,
    file_parts,
    merged,
    sections_from_json,
    sections_to_json,
)
from opal_lake.log.snapshot import Root, Snapshot, attribute_of
from opal_lake.log.tuning import DEFAULT_TUNING, Tuning
from opal_lake.log.visibility import fold_bases
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_sealed

_REMEDY = "delete it; it is derived and is written again"


def encode_root(root: Root, sections: Sections) -> bytes:
    """Encode the file of a checkpoint: its root, which names the parts of its lists."""
    body = {
        "format": FORMAT_VERSION,
        "table_id": root.table_id,
        "version": root.version,
        "write_id": root.write_id,
        "timestamp_us": root.timestamp_us,
        "spec": spec_to_json(root.spec),
        "epoch": root.epoch,
        "floor": root.floor,
        "greatest_number": root.greatest_number,
        "groups": sorted(root.groups.items()),
        "abandoned": sorted(root.abandoned),
        "next_row_id": root.next_row_id,
        "applications": dict(root.applications),
        "totals": [root.rows, root.pending, root.events],
        "sections": sections_to_json(sections),
    }
    absent_if_empty: dict[str, object] = {
        "oldest_version": root.oldest_version,
        "savepoints": dict(root.savepoints),
        "viewed": root.viewed,
        "thinned": sorted(root.incomplete_ingests),
        "clock_repairs": list(root.clock_repairs),
        "business_snapshots": business_to_json(root.business),
        "vouchers": sorted(root.vouchers.items()),
    }
    body |= {name: value for name, value in absent_if_empty.items() if value}
    return seal(canonical_json(body))


def decode_root(data: bytes, path: str) -> tuple[Root, Sections]:
    """Decode a checkpoint's file to its root and the parts of its lists."""
    body = unseal(data, path)
    check_format(body, path)
    with decoding(path, "the root of a checkpoint", _REMEDY):
        return _root_from_json(body), sections_from_json(checked.mapped(body["sections"]))


def _root_from_json(body: Mapping[str, Any]) -> Root:
    rows, pending, events = map(checked.count, body["totals"])
    return Root(
        table_id=checked.plain_id(body["table_id"]),
        version=checked.count(body["version"]),
        write_id=checked.plain_id(body["write_id"]),
        timestamp_us=checked.moment(body["timestamp_us"]),
        spec=spec_from_json(body["spec"]),
        epoch=checked.word(body["epoch"]),
        floor=checked.optional(body["floor"], checked.word),
        oldest_version=checked.count(body.get("oldest_version", 0)),
        savepoints=checked.numbered(body.get("savepoints", {})),
        viewed=checked.count(body.get("viewed", 0)),
        business=business_from_json(body.get("business_snapshots", {})),
        clock_repairs=checked.counts(body.get("clock_repairs", ())),
        greatest_number=checked.count(body["greatest_number"]),
        groups=rows_by_group(body["groups"]),
        abandoned=frozenset(checked.counts(body["abandoned"])),
        incomplete_ingests=frozenset(checked.counts(body.get("thinned", ()))),
        next_row_id=checked.count(body["next_row_id"]),
        applications=checked.numbered(body["applications"]),
        rows=rows,
        pending=pending,
        events=events,
        vouchers=_vouchers_from_json(body.get("vouchers", ())),
    )


def _vouchers_from_json(data: Any) -> dict[int, str]:
    return {checked.count(version): checked.plain_id(write_id) for version, write_id in data}


def write_checkpoint(
    storage: Storage,
    snapshot: Snapshot,
    *,
    fold: bool = True,
    read: Callable[[LogFile], Events] | None = None,
    tuning: Tuning = DEFAULT_TUNING,
) -> Snapshot:
    """Store the state as a checkpoint, and return the version that reads from it.

    Each list keeps most parts of the last checkpoint, and gets one more part with the changes since
    then. Two writers may store one version's checkpoint at the same time: both roots name the part
    that was stored first, and the root that was stored first stays. With `fold`, the bitmap bases
    are folded if that is due. `read` returns the events of a log.
    """
    bases = fold_bases(snapshot, read, tuning=tuning) if fold else snapshot.bases
    sections: dict[str, tuple[Part, ...]] = {}
    # The parts are stored before the root: a root never names a file that is missing
    for name, plan in plan_lists(snapshot).items():
        sections[name] = plan.standing + _written(storage, snapshot, name, plan, tuning)
    older_bases = snapshot.sections.get("bases", ())
    has_changed = bases is not snapshot.bases or "bases" in touched_sections(snapshot.commits)
    if has_changed or not older_bases:
        sections["bases"] = _bases_part(bases, snapshot.version)
    else:
        sections["bases"] = older_bases
    path = layout.checkpoint_path(snapshot.version, snapshot.root.write_id)
    storage.put_if_absent(path, encode_root(snapshot.root, sections))
    return snapshot.stored_as(sections)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPlan:
    """The parts of a list in a checkpoint: older ones that are kept, and a new one.

    `lines` are those of the new part, None if the list gets no new part.
    """

    standing: tuple[Part, ...]
    lines: Lines | None = None

    @property
    def after(self) -> int | None:
        """The version of the last older part, None if there is none."""
        return self.standing[-1].version if self.standing else None


def plan_lists(snapshot: Snapshot) -> dict[str, ListPlan]:
    """Plan the parts of each list in a checkpoint of this version."""
    touched = touched_sections(snapshot.commits)
    return {name: _plan_list(snapshot, name, is_touched=name in touched) for name in LISTS}


def _plan_list(snapshot: Snapshot, name: str, *, is_touched: bool) -> ListPlan:
    """Plan the parts of one list.

    The last part is merged into the new one if it is within the root, or if it is not much larger
    than the new one.
    """
    standing = list(snapshot.sections.get(name, ()))
    kind = LISTS[name]
    is_restored = is_touched and _has_restore(snapshot)
    # An older part still has the bounds of files that an erasure removed (I34)
    if name in RESTORED_LISTS and (is_restored or _has_erasure(snapshot)):
        # A restore brings back items that an older part lists. If they are removed again, the new
        # part would leave them out, as items that came and went since the older part: a reader
        # would still find them there. So the list is written as a whole.
        whole: Lines = {}
        for key, value in list_items(snapshot, name).items():
            whole[key] = canonical_json(kind.to_json(key, value))
        return ListPlan(standing=(), lines=whole)
    if standing and not is_touched:
        return ListPlan(standing=tuple(standing))
    lines = _changed_lines(snapshot, name, kind)
    while standing and _is_merged(standing[-1], len(lines)):
        part_bytes, source = snapshot.part_bytes(standing.pop())
        older = decode_part(part_bytes, source, kind.key_of)
        lines = merged(older, lines)
    if not standing:
        # The first part has no part before it from which a line could remove an item
        lines = {key: line for key, line in lines.items() if line is not None}
        if name == "tokens":
            max_tokens = snapshot.spec.integer("token_keep")
            newest = list(lines.items())[-max_tokens:]
            lines = dict(newest)
    return ListPlan(standing=tuple(standing), lines=lines)


def _has_restore(snapshot: Snapshot) -> bool:
    return any(commit.actions.restored is not None for commit in snapshot.commits)


def _has_erasure(snapshot: Snapshot) -> bool:
    return any(commit.operation == ERASE for commit in snapshot.commits)


def _changed_lines(snapshot: Snapshot, name: str, kind: ListKind) -> Lines:
    """Return a part's lines: the changes of the commits since the last checkpoint."""
    lines: Lines = {}
    for key, value in snapshot.changes(name):
        if value is None:
            add_line(lines, key, None)
        else:
            add_line(lines, key, canonical_json(kind.to_json(key, value)))
    return lines


def list_items(snapshot: Snapshot, name: str) -> dict[Hashable, Any]:
    """Return the items of one of the `RESTORED_LISTS`, by key."""
    if name == "partitions":
        pairs: dict[Hashable, Any] = {}
        for key, numbers in snapshot.partitions.items():
            for number in sorted(numbers):
                pairs[key, number] = number
        return pairs
    items: dict[Hashable, Any] = getattr(snapshot, attribute_of(name))
    return items


def _is_merged(part: Part, new_lines: int) -> bool:
    """Return whether a list's last part is merged into one with so many new lines."""
    return isinstance(part, InlinePart) or part.items <= MERGE_RATIO * new_lines


def _written(
    storage: Storage, snapshot: Snapshot, name: str, plan: ListPlan, tuning: Tuning
) -> tuple[Part, ...]:
    """Store the new part of a list, if there is one, and return it."""
    if plan.lines is None:
        return ()
    data = encode_part(plan.lines)
    version = snapshot.version
    if len(data) <= tuning.inline_bytes:
        return (InlinePart(data=data, version=version),)
    path = layout.section_path(version, snapshot.root.write_id, name, plan.after)
    items = len(plan.lines)
    if not storage.put_if_absent(path, data):
        # Another writer stored the part first: with the same changes, but maybe other merges
        data = storage.get(path)
        items = len(decode_part(data, path, LISTS[name].key_of))
    part = SectionRef(
        path=path, size=len(data), crc32=zlib.crc32(data), version=version, items=items
    )
    return (part,)


def _bases_part(bases: Iterable[BitmapBase], version: int) -> tuple[Part, ...]:
    """Return the part with the bitmap bases. They are few, so it is in the root."""
    return (InlinePart(data=encode_section(bases, base_to_json), version=version),)


def kept_files(snapshot: Snapshot) -> Iterable[SectionRef]:
    """Return the part files of the last checkpoint that the next one would keep."""
    plans = plan_lists(snapshot)
    return file_parts({name: plan.standing for name, plan in plans.items()})


def ensure_checkpoint(
    storage: Storage, snapshot: Snapshot, *, tuning: Tuning = DEFAULT_TUNING
) -> Snapshot:
    """Write a version's checkpoint if it is missing; return the version read from it.

    The checkpoint is read back whole and compared: from then on the version does not need the log
    before it. Raises FormatError if the checkpoint differs.
    """
    if not any(storage.list(layout.checkpoint_start_after(snapshot.version))):
        write_checkpoint(storage, snapshot, fold=False, tuning=tuning)
    checkpoint = read_checkpoint(storage, snapshot.version)
    if (
        checkpoint is None
        or checkpoint.root != snapshot.root
        or read_lists(checkpoint) != read_lists(snapshot)
    ):
        raise FormatError(
            f"{storage.uri}: the checkpoint of version {snapshot.version} differs from the log; "
            "run `opal check`, which names the damaged file"
        )
    return checkpoint


def read_lists(state: Snapshot) -> tuple[object, ...]:
    """Return all lists except the bases; raise FormatError if one cannot be read."""
    # The bases are not compared, but read, so that a damaged part of them is an error
    assert state.bases is not None
    return (
        state.files,
        state.segments,
        state.pending_segments,
        state.logs,
        state.runs,
        state.tokens,
        state.partitions,
    )


def checkpoint_paths(storage: Storage) -> Iterator[str]:
    """Yield the paths of all roots, newest first."""
    for entry in storage.list(layout.CHECKPOINTS):
        if layout.checkpoint_version(entry.path) is None:
            return  # a listing has all roots before the files of parts
        yield entry.path


def touched_sections(commits: Iterable[Commit]) -> set[str]:
    """Return the names of the lists that some commits change."""
    touched: set[str] = set()
    for commit in commits:
        actions = commit.actions
        rewrite = actions.rewrite
        # Pairs of a change, and the names of the lists that it changes unless it is empty
        changes: tuple[tuple[object, tuple[str, ...]], ...] = (
            (actions.ingested, ("files", "pending")),
            (actions.ingested_side, ("files", "pending")),
            (actions.processed, ("pending", "segments")),
            (actions.discarded, ("files", "pending")),
            (actions.withdrawn, ("partitions",)),
            (commit.partition_key is not None, ("partitions",)),
            (rewrite, ("files",)),
            (rewrite and rewrite.gone, ("segments",)),
            (actions.add_logs, ("logs",)),
            (actions.remove_logs, ("logs",)),
            (actions.forgotten, ("bases",)),
            (actions.restored, RESTORED_LISTS),
            (actions.add_runs, ("runs",)),
            (actions.remove_runs, ("runs",)),
            (commit.token, ("tokens",)),
            (actions.replaced_tokens, ("tokens",)),
        )
        for change, names in changes:
            if change:
                touched.update(names)
    return touched


def read_checkpoint(storage: Storage, at_most: int | None) -> Snapshot | None:
    """Return the newest checkpoint at or below a version, None if there is none."""
    start_after = "" if at_most is None else layout.checkpoint_start_after(at_most)
    for entry in storage.list(layout.CHECKPOINTS, start_after):
        version = layout.checkpoint_version(entry.path)
        if version is None:
            return None  # a listing has all roots before the files of parts
        data = read_sealed(storage, entry.path)
        root, sections = decode_root(data, f"{storage.uri}/{entry.path}")
        if root.version != version:
            raise FormatError(
                f"{entry.path} holds version {root.version} instead of {version}; {_REMEDY}"
            )
        return Snapshot(storage, root, sections, ())
    return None
