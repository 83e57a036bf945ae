"""The folded state as bytes (FORMAT, checkpoints): a sealed root, and the sections it refers to. Derived: deleting one loses nothing.

`commit_log` writes one every `checkpoint_commits` versions and after a restore, a compaction at its end, retention and savepoints where
they need one.
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
from opal_lake.log import sections as parts_of
from opal_lake.log.commit import (
    FORMAT_VERSION,
    Commit,
    canonical_json,
    check_format,
    seal,
    unseal,
)
from opal_lake.log.lists import LISTS, RESTORED_LISTS
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
from opal_lake.log.visibility import fold_bases
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_sealed


def encode_root(root: Root, sections: Sections) -> bytes:
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
    kept: dict[str, object] = {
        "oldest_version": root.oldest_version,
        "savepoints": dict(root.savepoints),
        "viewed": root.viewed,
    }
    kept |= {
        "thinned": sorted(root.incomplete_ingests),
        "clock_repairs": list(root.clock_repairs),
        "business_snapshots": business_to_json(root.business),
        "vouchers": sorted(root.vouchers.items()),
    }
    return seal(canonical_json(body | {name: value for name, value in kept.items() if value}))


def decode_root(data: bytes, path: str) -> tuple[Root, Sections]:
    body = unseal(data, path)
    check_format(body, path)
    with decoding(
        path, "the root of a checkpoint", "delete it, it is derived and will be made again"
    ):
        return _root_from_json(body), sections_from_json(checked.mapped(body["sections"]))


def _root_from_json(body: Mapping[str, Any]) -> Root:
    floor = body["floor"]
    rows, pending, events = map(checked.count, body["totals"])
    return Root(
        table_id=checked.plain_id(body["table_id"]),
        version=checked.count(body["version"]),
        write_id=checked.plain_id(body["write_id"]),
        timestamp_us=checked.moment(body["timestamp_us"]),
        spec=spec_from_json(body["spec"]),
        epoch=checked.word(body["epoch"]),
        floor=None if floor is None else checked.word(floor),
        oldest_version=checked.count(body.get("oldest_version", 0)),
        savepoints=checked.numbered(body.get("savepoints", {})),
        viewed=checked.count(body.get("viewed", 0)),
        business=business_from_json(body.get("business_snapshots", {})),
        clock_repairs=checked.counts(body.get("clock_repairs", ())),
        greatest_number=checked.count(body["greatest_number"]),
        groups={checked.count(group): checked.count(held) for group, held in body["groups"]},
        abandoned=frozenset(checked.counts(body["abandoned"])),
        incomplete_ingests=frozenset(checked.counts(body.get("thinned", ()))),
        next_row_id=checked.count(body["next_row_id"]),
        applications=checked.numbered(body["applications"]),
        rows=rows,
        pending=pending,
        events=events,
        vouchers={
            checked.count(version): checked.plain_id(write_id)
            for version, write_id in body.get("vouchers", ())
        },
    )


def write_checkpoint(
    storage: Storage,
    snapshot: Snapshot,
    *,
    fold: bool = True,
    read: Callable[[LogFile], Events] | None = None,
) -> Snapshot:
    """Store the state, and return it so: of each list the parts that stand, and one more with what came and went since the one before.

    Two writers may do this at once for one version: whose part is there first is named by both, and the first root stays. With `fold`
    bitmap bases are folded anew when it is time to. `read` returns the events of a log.
    """
    bases = fold_bases(snapshot, read) if fold else snapshot.bases
    sections = {
        name: plan.kept + _written(storage, snapshot, name, plan)
        for name, plan in plan_lists(snapshot).items()
    }
    sections["bases"] = snapshot.sections.get("bases", ())
    if (
        bases is not snapshot.bases
        or not sections["bases"]
        or "bases" in touched_sections(snapshot.commits)
    ):
        sections["bases"] = _bases_part(bases, snapshot.version)
    storage.put_if_absent(
        layout.checkpoint_path(snapshot.version, snapshot.root.write_id),
        encode_root(snapshot.root, sections),
    )
    return snapshot.stored_as(sections)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPlan:
    """How a checkpoint names a list: parts that stand, and what one more part holds. `after` is the version of the part before that."""

    kept: tuple[Part, ...]
    lines: Lines | None = None

    @property
    def after(self) -> int | None:
        return self.kept[-1].version if self.kept else None


def plan_lists(snapshot: Snapshot) -> dict[str, ListPlan]:
    touched = touched_sections(snapshot.commits)
    return {name: _plan_list(snapshot, name, is_touched=name in touched) for name in LISTS}


def _plan_list(snapshot: Snapshot, name: str, *, is_touched: bool) -> ListPlan:
    """A part that lies in the root is written again in any case; one in a file once what is new is large beside it.

    A restore brings back what had gone. When that goes once more, a part could not tell it from what came and went since the part below,
    which has it still: so after a restore the list begins anew.
    """
    kept, kind = list(snapshot.sections.get(name, ())), LISTS[name]
    if kept and not is_touched:
        return ListPlan(kept=tuple(kept))
    if name in RESTORED_LISTS and any(
        commit.actions.restored is not None for commit in snapshot.commits
    ):
        return ListPlan(
            kept=(),
            lines={
                key: canonical_json(kind.to_json(key, value))
                for key, value in list_items(snapshot, name).items()
            },
        )
    lines: Lines = {}
    for key, value in snapshot.changes(name):
        add_line(lines, key, None if value is None else canonical_json(kind.to_json(key, value)))
    while kept and _merges(kept[-1], len(lines)):
        lines = merged(decode_part(*snapshot.part_bytes(kept.pop()), kind.key_of), lines)
    if not kept:
        lines = {key: line for key, line in lines.items() if line is not None}
        if name == "tokens":
            lines = dict([*lines.items()][-snapshot.spec.integer("token_keep") :])
    return ListPlan(kept=tuple(kept), lines=lines)


def list_items(snapshot: Snapshot, name: str) -> dict[Hashable, Any]:
    """One of the lists that a restore sets back, by what names its items."""
    if name == "partitions":
        ingests = snapshot.partitions.items()
        return {(key, number): number for key, numbers in ingests for number in sorted(numbers)}
    items: dict[Hashable, Any] = getattr(snapshot, attribute_of(name))
    return items


def _merges(part: Part, new: int) -> bool:
    return isinstance(part, InlinePart) or part.items <= MERGE_RATIO * new


def _written(storage: Storage, snapshot: Snapshot, name: str, plan: ListPlan) -> tuple[Part, ...]:
    if plan.lines is None:
        return ()
    data, version = encode_part(plan.lines), snapshot.version
    if len(data) <= parts_of.INLINE_BYTES:
        return (InlinePart(data=data, version=version),)
    path, items = (
        layout.section_path(version, snapshot.root.write_id, name, plan.after),
        len(plan.lines),
    )
    if not storage.put_if_absent(path, data):
        data = storage.get(path)  # the same changes, though merged otherwise
        items = len(decode_part(data, path, LISTS[name].key_of))
    return (
        SectionRef(path=path, size=len(data), crc32=zlib.crc32(data), version=version, items=items),
    )


def _bases_part(bases: Iterable[BitmapBase], version: int) -> tuple[Part, ...]:
    """Always in the root: bases are few."""
    return (InlinePart(data=encode_section(bases, base_to_json), version=version),)


def kept_files(snapshot: Snapshot) -> Iterable[SectionRef]:
    """Of the checkpoint below, the files that one of this very version would name again."""
    return file_parts({name: plan.kept for name, plan in plan_lists(snapshot).items()})


def ensure_checkpoint(storage: Storage, snapshot: Snapshot) -> Snapshot:
    """The version as its own checkpoint has it, read back whole: from then on the log below is not needed to know it."""
    if not any(storage.list(layout.checkpoint_start_after(snapshot.version))):
        write_checkpoint(storage, snapshot, fold=False)
    checkpoint = read_checkpoint(storage, snapshot.version)
    if (
        checkpoint is None
        or checkpoint.root != snapshot.root
        or read_lists(checkpoint) != read_lists(snapshot)
    ):
        raise FormatError(
            f"{storage.uri}: the checkpoint of version {snapshot.version} is not what the log says; run `opal check`"
        )
    return checkpoint


def read_lists(state: Snapshot) -> tuple[object, ...]:
    """All that the sections hold but for the derived bases; FormatError where it cannot be read."""
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
    """Of all roots, newest first."""
    for entry in storage.list(layout.CHECKPOINTS):
        if layout.checkpoint_version(entry.path) is None:
            return  # past the roots: what follows are sections
        yield entry.path


def touched_sections(commits: Iterable[Commit]) -> set[str]:
    """The sections that these commits change."""
    touched: set[str] = set()
    for commit in commits:
        actions = commit.actions
        touched |= {"files", "pending"} if actions.ingested or actions.ingested_side else set()
        touched |= {"pending", "segments"} if actions.processed else set()
        touched |= {"files", "pending"} if actions.discarded else set()
        touched |= {"partitions"} if actions.withdrawn else set()
        touched |= {"files"} if actions.rewrite else set()
        touched |= {"segments"} if actions.rewrite and actions.rewrite.gone else set()
        touched |= {"logs"} if actions.add_logs or actions.remove_logs else set()
        touched |= {"bases"} if actions.forgotten else set()
        touched |= {*RESTORED_LISTS} if actions.restored else set()
        touched |= {"runs"} if actions.add_runs or actions.remove_runs else set()
        touched |= {"tokens"} if commit.token or actions.replaced_tokens else set()
        touched |= {"partitions"} if commit.partition_key is not None else set()
    return touched


def read_checkpoint(storage: Storage, at_most: int | None) -> Snapshot | None:
    """The newest checkpoint at or below a version, None when there is none."""
    start_after = "" if at_most is None else layout.checkpoint_start_after(at_most)
    for entry in storage.list(layout.CHECKPOINTS, start_after):
        version = layout.checkpoint_version(entry.path)
        if version is None:
            return None  # past the roots: what follows are sections
        root, sections = decode_root(
            read_sealed(storage, entry.path), f"{storage.uri}/{entry.path}"
        )
        if root.version != version:
            raise FormatError(
                f"{entry.path} holds version {root.version}; delete it, it is derived and will be made again"
            )
        return Snapshot(storage, root, sections, ())
    return None
