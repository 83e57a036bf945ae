"""One commit and its bytes (FORMAT, commits). A version is the fold of the commits 0 to v."""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from opal_lake import checked
from opal_lake.data.bounds import bounds_from_json, bounds_to_json
from opal_lake.data.reported import check_files, check_ingested
from opal_lake.data.segment import (
    Cluster,
    DataFile,
    DiscardedSegment,
    LogFile,
    RunFile,
    Segment,
    SideFile,
    check_rows,
    discarded_from_json,
    discarded_to_json,
    log_from_json,
    log_to_json,
    run_from_json,
    run_to_json,
    segment_from_json,
    segment_to_json,
    side_from_json,
    side_to_json,
)
from opal_lake.decoding import decoding
from opal_lake.definition.business_snapshots import (
    BusinessSnapshots,
    business_from_json,
    business_to_json,
)
from opal_lake.definition.positions import Advance, positions_from_json, positions_to_json
from opal_lake.definition.table_spec import TableSpec, spec_from_json, spec_to_json
from opal_lake.errors import FormatError, InvalidInputError, pre_release
from opal_lake.events.bitmap import BitmapBase, base_from_json, base_to_json
from opal_lake.layout import PathKind, own_path
from opal_lake.result import checked_result

FORMAT_VERSION = 1  # of every commit, root, page, digest and document of a stream
MAX_FILES_IN_COMMIT = 256  # more are listed in a side file
_OPEN, _BODY, _CLOSE = b'{"crc32":"', b'","body":', b"}\n"
_BODY_START = len(_OPEN) + 8 + len(_BODY)
_PRE_RELEASE = re.compile(rb'\{"crc32":"[0-9a-f]{8}","commit":')


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Files that stand for others: the same rows, but for those that were dropped.

    `side` lists both if they are many; `side_rows` are the rows of those that it adds.

    `incomplete_ingests` are the ingests with a partition key of which these are the first rows to be dropped.
    """

    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    side: SideFile | None = None
    side_rows: int = 0
    dropped_rows: int = 0
    gone: tuple[Segment, ...] = ()
    incomplete_ingests: tuple[int, ...] = ()

    @property
    def added_rows(self) -> int:
        return self.side_rows + sum(file.rows for file in self.add)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedTimes:
    """When versions from `first` on were committed, whatever their commits say; up to the one before the commit that says it."""

    first: int
    times_us: tuple[int, ...]

    def of(self, version: int) -> int | None:
        index = version - self.first
        return self.times_us[index] if 0 <= index < len(self.times_us) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore brings back: the older version, and what is so from now on.

    `side` lists the files, segments, logs and runs that came back and went; the sums are those of
    the version. `bases` are the bitmap bases by which it is read. `business` are its business
    snapshots; None if they stay as they are.
    """

    version: int
    side: SideFile
    groups: Mapping[int, int]
    rows: int
    pending: int
    events: int
    bases: tuple[BitmapBase, ...]
    incomplete_ingests: tuple[int, ...] = ()
    business: BusinessSnapshots | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """The changes of a commit.

    `ingested` files bring a segment each, which is pending until `processed` has it: by ascending
    id, as segments are that have no row base yet.

    `removed_events` are those of the `remove_logs`; `forgotten` says that some of them are in no other log. `finished` is a business
    snapshot of which no more rows come. `discarded` are pending segments that the table gives up; `withdrawn` are the partition key and
    the number of each ingest of which that leaves nothing, and `unheld` the numbers of those whose
    business snapshot was held back. `replaced_tokens` are those of tries that had not committed:
    one that is still running finds its token used.
    """

    spec: TableSpec | None = None
    ingested: tuple[DataFile, ...] = ()
    ingested_side: SideFile | None = None
    processed: tuple[Segment, ...] = ()
    discarded: tuple[DiscardedSegment, ...] = ()
    withdrawn: tuple[tuple[str, int], ...] = ()
    unheld: tuple[int, ...] = ()
    replaced_tokens: tuple[str, ...] = ()
    add_logs: tuple[LogFile, ...] = ()
    add_runs: tuple[RunFile, ...] = ()
    remove_runs: tuple[str, ...] = ()
    abandoned: tuple[int, ...] = ()
    rewrite: Rewrite | None = None
    remove_logs: tuple[str, ...] = ()
    removed_events: int = 0
    forgotten: bool = False
    floor: int | None = None
    oldest_version: int | None = None
    savepoints: Mapping[str, int] = field(default_factory=dict)
    released: tuple[str, ...] = ()
    finished: str | None = None
    corrected_times: CorrectedTimes | None = None
    restored: Restored | None = None

    @property
    def processed_ids(self) -> frozenset[int]:
        return frozenset(segment.id for segment in self.processed)

    @property
    def gives_row_ids(self) -> bool:
        """Return whether the commit gives row ids to the outside, and so says where they begin."""
        return self.row_ids > 0

    @property
    def visible_rows(self) -> int:
        """Return how many rows the commit makes visible; their ids precede those of added files."""
        return sum(segment.rows for segment in self.processed)

    @property
    def row_ids(self) -> int:
        """Return how many row ids the commit gives to the outside."""
        return self.visible_rows + (self.rewrite.added_rows if self.rewrite else 0)

    def check_reported(self, number: int | None) -> None:
        """ReportError where a task of this job reported a file that cannot be. Side files are looked at when they are written."""
        check_ingested(self.ingested, number)
        check_files((*(self.rewrite.add if self.rewrite else ()), *self.add_logs, *self.add_runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A link of the chain, which names the one before.

    `writer_us` is the time of its writer's own clock, None if that is the same.

    `first_row_id` is the first of the row ids that it gives to the outside, None if it gives none.
    """

    version: int
    table_id: str
    write_id: str
    previous_write_id: str | None
    timestamp_us: int
    operation: str
    writer_us: int | None = None
    number: int | None = None
    token: str | None = None
    application: tuple[str, int] | None = None
    positions: Mapping[str, Advance] = field(default_factory=dict)
    partition_key: str | None = None
    business_snapshot: str | None = None
    epoch: int = 0
    first_row_id: int | None = None
    changes_view: bool = False
    result: Mapping[str, Any] = field(default_factory=dict)
    actions: Actions = Actions()


def canonical_json(data: Any) -> bytes:
    """The one way this format writes JSON."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def seal(body: bytes) -> bytes:
    """A JSON document that carries the checksum of its own content."""
    return _OPEN + b"%08x" % zlib.crc32(body) + _BODY + body + _CLOSE


def unseal(data: bytes, path: str) -> Any:
    """Return the content of a sealed document; FormatError if its checksum does not hold."""
    if _PRE_RELEASE.match(data):
        raise pre_release(path)
    body = data[_BODY_START : -len(_CLOSE)]
    if data != seal(body):
        raise FormatError(
            f"{path} is damaged: its checksum does not hold; restore the file from a backup"
        )
    with decoding(path, "JSON"):
        return checked.mapped(checked.parse_canonical(body))


def encode_commit(commit: Commit) -> bytes:
    body = {
        "format": FORMAT_VERSION,
        "version": commit.version,
        "table_id": commit.table_id,
        "write_id": commit.write_id,
        "previous_write_id": commit.previous_write_id,
        "timestamp_us": commit.timestamp_us,
        "operation": commit.operation,
        "number": commit.number,
        "token": commit.token,
        "application": list(commit.application) if commit.application else None,
        "partition_key": commit.partition_key,
        "epoch": commit.epoch,
        "changes_view": commit.changes_view,
        "result": dict(commit.result),
        "actions": actions_to_json(commit.actions),
        **({} if commit.writer_us is None else {"writer_us": commit.writer_us}),
        **({} if commit.first_row_id is None else {"first_row_id": commit.first_row_id}),
        **(
            {}
            if commit.business_snapshot is None
            else {"business_snapshot": commit.business_snapshot}
        ),
        **({"positions": positions_to_json(commit.positions)} if commit.positions else {}),
    }
    return seal(canonical_json(body))


def encode_readable(commit: Commit) -> bytes:
    """Encode a commit; raise InvalidInputError if a reader would refuse it or read something else.

    A commit that cannot be read makes the table unreadable, and nothing takes it back.
    """
    refusal = (
        f"version {commit.version} was not written, since no reader would accept what it holds"
    )
    try:
        data = encode_commit(commit)
        is_same = _names_in(decode_commit(data, "it")) == _names_in(commit)
    except (AttributeError, FormatError, RecursionError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{refusal} ({error}); correct the arguments of this {commit.operation}"
        ) from error
    if not is_same:
        raise InvalidInputError(f"{refusal}: a name in it is not a text; write all names as texts")
    return data


def _names_in(commit: Commit) -> tuple[object, ...]:
    """Return the names that callers give; JSON would turn those of a mapping into texts."""
    actions = commit.actions
    return (
        commit.token,
        None if commit.application is None else tuple(commit.application),
        set(commit.positions),
        commit.partition_key,
        commit.business_snapshot,
        tuple(actions.replaced_tokens),
        dict(actions.savepoints),
        tuple(actions.released),
        actions.finished,
    )


def check_format(body: Mapping[str, Any], path: str) -> None:
    """Raise FormatError for a document of another format."""
    if body.get("format") != FORMAT_VERSION:
        raise FormatError(
            f"{path} has format {body.get('format')!r}, this version reads {FORMAT_VERSION}; "
            "upgrade opal-lake"
        )


def decode_commit(data: bytes, path: str) -> Commit:
    body = unseal(data, path)
    check_format(body, path)
    with decoding(path, "a commit"):
        return _commit_from_json(body)


def _commit_from_json(body: Mapping[str, Any]) -> Commit:
    application, number, token, partition_key = (
        body["application"],
        body["number"],
        body["token"],
        body["partition_key"],
    )
    previous = body["previous_write_id"]
    return Commit(
        version=checked.count(body["version"]),
        table_id=checked.plain_id(body["table_id"]),
        write_id=checked.plain_id(body["write_id"]),
        previous_write_id=None if previous is None else checked.plain_id(previous),
        timestamp_us=checked.moment(body["timestamp_us"]),
        operation=checked.text(body["operation"]),
        writer_us=checked.word(body["writer_us"]) if "writer_us" in body else None,
        number=None if number is None else checked.count(number),
        token=None if token is None else checked.text(token),
        application=(checked.text(application[0]), checked.count(application[1]))
        if application
        else None,
        positions=positions_from_json(body.get("positions", {})),
        partition_key=None if partition_key is None else checked.text(partition_key),
        business_snapshot=checked.business_snapshot(body["business_snapshot"])
        if "business_snapshot" in body
        else None,
        epoch=checked.word(body["epoch"]),
        first_row_id=checked.count(body["first_row_id"]) if "first_row_id" in body else None,
        changes_view=checked.flag(body["changes_view"]),
        result=checked_result(body["result"]),
        actions=actions_from_json(checked.mapped(body["actions"])),
    )


def actions_to_json(actions: Actions) -> dict[str, Any]:
    """Only what there is."""
    side = actions.ingested_side
    parts: dict[str, Any] = {
        "spec": spec_to_json(actions.spec) if actions.spec else None,
        "ingested": [file_to_json(file) for file in actions.ingested],
        "ingested_side": side_to_json(side) if side else None,
        "processed": [segment_to_json(segment) for segment in actions.processed],
        "discarded": [discarded_to_json(discarded) for discarded in actions.discarded],
        "withdrawn": [list(pair) for pair in actions.withdrawn],
        "unheld": list(actions.unheld),
        "replaced_tokens": list(actions.replaced_tokens),
        "add_logs": [log_to_json(log) for log in actions.add_logs],
        "add_runs": [run_to_json(run) for run in actions.add_runs],
        "remove_runs": list(actions.remove_runs),
        "abandoned": list(actions.abandoned),
        "rewrite": rewrite_to_json(actions.rewrite) if actions.rewrite else None,
        "remove_logs": list(actions.remove_logs),
        "removed_events": actions.removed_events,
        "forgotten": actions.forgotten,
        "savepoints": dict(actions.savepoints),
        "released": list(actions.released),
        "finished": actions.finished,
        "corrected_times": _times_to_json(actions.corrected_times),
        "restored": restored_to_json(actions.restored) if actions.restored else None,
    }
    optional = {"floor": actions.floor, "oldest_version": actions.oldest_version}  # which may be 0
    return {name: value for name, value in parts.items() if value} | {
        name: value for name, value in optional.items() if value is not None
    }


def actions_from_json(data: Mapping[str, Any]) -> Actions:
    floor, oldest = data.get("floor"), data.get("oldest_version")
    return Actions(
        spec=spec_from_json(data["spec"]) if "spec" in data else None,
        ingested=tuple(map(new_file_from_json, data.get("ingested", ()))),
        ingested_side=side_from_json(data["ingested_side"]) if "ingested_side" in data else None,
        processed=_processed_from_json(checked.listed(data.get("processed", []))),
        discarded=tuple(map(discarded_from_json, checked.listed(data.get("discarded", [])))),
        withdrawn=tuple(map(ingest_of_key, checked.listed(data.get("withdrawn", [])))),
        unheld=checked.counts(data.get("unheld", ())),
        replaced_tokens=tuple(map(checked.text, checked.listed(data.get("replaced_tokens", [])))),
        add_logs=tuple(map(log_from_json, data.get("add_logs", ()))),
        add_runs=tuple(map(run_from_json, data.get("add_runs", ()))),
        remove_runs=tuple(map(checked.text, checked.listed(data.get("remove_runs", ())))),
        abandoned=checked.counts(data.get("abandoned", ())),
        rewrite=rewrite_from_json(data["rewrite"]) if "rewrite" in data else None,
        remove_logs=tuple(map(checked.text, checked.listed(data.get("remove_logs", ())))),
        removed_events=checked.count(data.get("removed_events", 0)),
        forgotten=checked.flag(data.get("forgotten", False)),
        floor=None if floor is None else checked.word(floor),
        oldest_version=None if oldest is None else checked.count(oldest),
        savepoints=checked.numbered(data.get("savepoints", {})),
        released=tuple(map(checked.text, checked.listed(data.get("released", ())))),
        finished=checked.business_snapshot(data["finished"]) if "finished" in data else None,
        corrected_times=_times_from_json(data["corrected_times"])
        if "corrected_times" in data
        else None,
        restored=restored_from_json(checked.mapped(data["restored"]))
        if "restored" in data
        else None,
    )


def _processed_from_json(data: Sequence[Any]) -> tuple[Segment, ...]:
    """Decode segments that take their row ids in the order of the list, so that it has one."""
    segments = tuple(map(segment_from_json, data))
    for segment in segments:
        if segment.row_base is not None:
            raise ValueError(f"segment {segment.id} has a row base before it is processed")
    if any(second.id <= first.id for first, second in pairwise(segments)):
        raise ValueError("its processed segments do not rise")
    return segments


def ingest_of_key(data: Any) -> tuple[str, int]:
    """A partition key and the number of an ingest that carries it, from JSON."""
    key, number = checked.listed(data)
    return checked.text(key), checked.count(number)


def _times_to_json(times: CorrectedTimes | None) -> list[int] | None:
    return None if times is None else [times.first, *times.times_us]


def _times_from_json(data: Any) -> CorrectedTimes:
    first, *times_us = checked.listed(data)
    return CorrectedTimes(first=checked.count(first), times_us=tuple(map(checked.word, times_us)))


def restored_to_json(restored: Restored) -> dict[str, Any]:
    thinned = {"thinned": list(restored.incomplete_ingests)} if restored.incomplete_ingests else {}
    business = (
        {}
        if restored.business is None
        else {"business_snapshots": business_to_json(restored.business)}
    )
    return (
        thinned
        | business
        | {
            "version": restored.version,
            "side": side_to_json(restored.side),
            "groups": [list(pair) for pair in sorted(restored.groups.items())],
            "totals": [restored.rows, restored.pending, restored.events],
            "bases": [base_to_json(base) for base in restored.bases],
        }
    )


def restored_from_json(data: Mapping[str, Any]) -> Restored:
    rows, pending, events = map(checked.count, data["totals"])
    return Restored(
        version=checked.count(data["version"]),
        side=side_from_json(data["side"]),
        groups={checked.count(group): checked.count(held) for group, held in data["groups"]},
        rows=rows,
        pending=pending,
        events=events,
        bases=tuple(base_from_json(base) for base in checked.listed(data["bases"])),
        incomplete_ingests=checked.counts(data.get("thinned", ())),
        business=business_from_json(data["business_snapshots"])
        if "business_snapshots" in data
        else None,
    )


def rewrite_to_json(rewrite: Rewrite) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "add": [file_to_json(file) for file in rewrite.add],
        "remove": list(rewrite.remove),
        "side": side_to_json(rewrite.side) if rewrite.side else None,
        "dropped_rows": rewrite.dropped_rows,
        "gone": [segment_to_json(segment) for segment in rewrite.gone],
        "thinned": list(rewrite.incomplete_ingests),
    }
    side_rows = {"side_rows": rewrite.side_rows} if rewrite.side else {}  # 0 where none is added
    return {name: value for name, value in parts.items() if value} | side_rows


def rewrite_from_json(data: Mapping[str, Any]) -> Rewrite:
    if ("side" in data) != ("side_rows" in data):
        raise ValueError("its rewrite has only one of `side` and `side_rows`")
    if "side" in data and ("add" in data or "remove" in data):
        raise ValueError("its rewrite lists files both in a side file and in itself")
    return Rewrite(
        add=tuple(map(new_file_from_json, data.get("add", ()))),
        remove=tuple(map(checked.text, checked.listed(data.get("remove", ())))),
        side=side_from_json(data["side"]) if "side" in data else None,
        side_rows=checked.count(data.get("side_rows", 0)),
        dropped_rows=checked.count(data.get("dropped_rows", 0)),
        gone=tuple(map(segment_from_json, data.get("gone", ()))),
        incomplete_ingests=checked.counts(data.get("thinned", ())),
    )


def file_to_json(file: DataFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "size": file.size,
        "crc32": file.crc32,
        "footer": [file.footer_bytes, file.footer_crc32],
        "rows": file.rows,
        "group": file.group,
        "segments": list(file.segments),
        "bounds": bounds_to_json(file.bounds),
        **({"cluster": [file.cluster.number, list(file.cluster.columns)]} if file.cluster else {}),
        **({"codec": file.codec} if file.codec else {}),
        **({} if file.floor is None else {"floor": file.floor}),
        **({} if file.first_row_id is None else {"first_row_id": file.first_row_id}),
    }


def new_file_from_json(data: Mapping[str, Any]) -> DataFile:
    """Decode a file that a commit brings; only the list of files has the ids it reserves."""
    file = file_from_json(data)
    if file.first_row_id is not None:
        raise ValueError(f"{file.path} has a first_row_id in the commit that brings it")
    return file


def file_from_json(data: Mapping[str, Any]) -> DataFile:
    cluster, floor = data.get("cluster"), data.get("floor")
    file = DataFile(
        path=own_path(PathKind.DATA, data["path"]),
        size=checked.count(data["size"]),
        crc32=checked.crc(data["crc32"]),
        footer_bytes=checked.count(data["footer"][0]),
        footer_crc32=checked.crc(data["footer"][1]),
        rows=check_rows(checked.count(data["rows"]), checked.count(data["size"])),
        group=checked.word(data["group"]),
        segments=checked.counts(data["segments"]),
        bounds=bounds_from_json(data["bounds"]),
        cluster=Cluster(number=checked.count(cluster[0]), columns=checked.counts(cluster[1]))
        if cluster
        else None,
        codec=checked.text(data.get("codec", "")),
        floor=None if floor is None else checked.word(floor),
        first_row_id=checked.count(data["first_row_id"]) if "first_row_id" in data else None,
    )
    if not file.rows or not file.segments or not 0 < file.footer_bytes <= file.size:
        raise ValueError(
            f"{file.path} has no row, no segment, or a footer of {file.footer_bytes} of its {file.size} bytes"
        )
    return file
