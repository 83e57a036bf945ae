"""The folded state as bytes (FORMAT, checkpoints): a sealed root, and the sections it refers to. Derived: deleting one loses nothing."""

import zlib
from collections.abc import Iterable, Mapping

from opal_lake import layout
from opal_lake.commit import FORMAT_VERSION, Commit, canonical_json, seal, unseal
from opal_lake.errors import FormatError
from opal_lake.sections import SectionRef, encode_section, ref_from_json, refs_to_json
from opal_lake.snapshot import SECTION_WRITERS, Root, Snapshot
from opal_lake.storage.protocol import Storage
from opal_lake.table_spec import spec_from_json, spec_to_json
from opal_lake.visibility import fold_bases


def encode_root(root: Root, sections: Mapping[str, SectionRef]) -> bytes:
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
        "applications": dict(root.applications),
        "totals": [root.rows, root.pending, root.events],
        "sections": refs_to_json(sections),
    }
    kept: dict[str, object] = {"oldest_version": root.oldest_version, "savepoints": dict(root.savepoints), "viewed": root.viewed}
    return seal(canonical_json(body | {name: value for name, value in kept.items() if value}))


def decode_root(data: bytes, path: str) -> tuple[Root, dict[str, SectionRef]]:
    body = unseal(data, path)
    if body.get("format") != FORMAT_VERSION:
        raise FormatError(f"{path} has format {body.get('format')!r}, this version reads {FORMAT_VERSION}; upgrade airflow-provider-opal")
    rows, pending, events = body["totals"]
    root = Root(
        table_id=body["table_id"],
        version=body["version"],
        write_id=body["write_id"],
        timestamp_us=body["timestamp_us"],
        spec=spec_from_json(body["spec"]),
        epoch=body["epoch"],
        floor=body["floor"],
        oldest_version=body.get("oldest_version", 0),
        savepoints=body.get("savepoints", {}),
        viewed=body.get("viewed", 0),
        greatest_number=body["greatest_number"],
        groups=dict(map(tuple, body["groups"])),
        abandoned=frozenset(body["abandoned"]),
        applications=body["applications"],
        rows=rows,
        pending=pending,
        events=events,
    )
    return root, {name: ref_from_json(ref) for name, ref in body["sections"].items()}


def write_checkpoint(storage: Storage, snapshot: Snapshot, *, fold: bool = True) -> None:
    """Store the state; sections that no commit since the last checkpoint touched are referred to again.

    Two writers may do this at once for one version: whose section is there first is named by both, and the first root stays. With `fold`
    bitmap bases are folded anew when it is time to.
    """
    touched = touched_sections(snapshot.commits)
    bases = fold_bases(snapshot) if fold else snapshot.bases
    if bases is not snapshot.bases:
        touched.add("bases")
    sections: dict[str, SectionRef] = {}
    for name, (items, to_json) in SECTION_WRITERS.items():
        if name in snapshot.sections and name not in touched:
            sections[name] = snapshot.sections[name]
            continue
        data = encode_section(bases.values() if name == "bases" else items(snapshot), to_json)
        path = layout.section_path(snapshot.version, snapshot.root.write_id, name)
        if not storage.put_if_absent(path, data):
            data = storage.get(path)  # bases may be folded, or not: either are right
        sections[name] = SectionRef(path=path, size=len(data), crc32=zlib.crc32(data), version=snapshot.version)
    storage.put_if_absent(layout.checkpoint_path(snapshot.version, snapshot.root.write_id), encode_root(snapshot.root, sections))


def ensure_checkpoint(storage: Storage, snapshot: Snapshot) -> Snapshot:
    """The version as its own checkpoint has it, read back whole: from then on the log below is not needed to know it."""
    if not any(storage.list(layout.checkpoint_start_after(snapshot.version))):
        write_checkpoint(storage, snapshot, fold=False)
    found = read_checkpoint(storage, snapshot.version)
    if found is None or found.root != snapshot.root or read_lists(found) != read_lists(snapshot):
        raise FormatError(f"{storage.uri}: the checkpoint of version {snapshot.version} is not what the log says; run `opal check`")
    return found


def read_lists(state: Snapshot) -> tuple[object, ...]:
    """All that the sections hold but for the derived bases; FormatError where it cannot be read."""
    assert state.bases is not None
    return state.files, state.segments, state.pending, state.logs, state.runs, state.tokens, state.partitions


def checkpoint_versions(storage: Storage) -> list[int]:
    """Newest first."""
    return [version for found in storage.list(layout.CHECKPOINTS) if (version := layout.checkpoint_version(found.path)) is not None]


def touched_sections(commits: Iterable[Commit]) -> set[str]:
    """The sections that these commits change."""
    touched: set[str] = set()
    for commit in commits:
        actions = commit.actions
        touched |= {"files", "segments", "pending"} if actions.ingested or actions.ingested_side else set()
        touched |= {"pending"} if actions.processed else set()
        touched |= {"files"} if actions.rewrite else set()
        touched |= {"segments"} if actions.rewrite and actions.rewrite.gone else set()
        touched |= {"logs"} if actions.add_logs or actions.remove_logs else set()
        touched |= {"bases"} if actions.forgotten else set()
        touched |= {"runs"} if actions.add_runs or actions.remove_runs else set()
        touched |= {"tokens"} if commit.token else set()
        touched |= {"partitions"} if commit.partition_key is not None else set()
    return touched


def read_checkpoint(storage: Storage, at_most: int | None) -> Snapshot | None:
    """The newest checkpoint at or below a version, None when there is none."""
    start_after = "" if at_most is None else layout.checkpoint_start_after(at_most)
    for found in storage.list(layout.CHECKPOINTS, start_after):
        version = layout.checkpoint_version(found.path)
        if version is None:
            return None  # past the roots: what follows are sections
        root, sections = decode_root(storage.get(found.path), found.path)
        if root.version != version:
            raise FormatError(f"{found.path} holds version {root.version}; delete it, it is derived and will be made again")
        return Snapshot(storage, root, sections, ())
    return None
