"""Commits and their bytes (FORMAT, commits). Version `v` is the fold of the commits 0 to `v`."""

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
CREATE = "create"  # the operation of version 0
ERASE = "erase"  # the operation of a commit that erases rows, and begins a new epoch
MAX_FILES_IN_COMMIT = 256  # if a commit has more files, they are listed in a side file
# A sealed document is `{"crc32":"<8 hex digits>","body":<body>}` and a line feed, byte by byte
_OPEN, _BODY, _CLOSE = b'{"crc32":"', b'","body":', b"}\n"
_BODY_START = len(_OPEN) + 8 + len(_BODY)
_PRE_RELEASE = re.compile(rb'\{"crc32":"[0-9a-f]{8}","commit":')


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Files that replace other files, with the same rows except for dropped ones.

    - `add` are the new files, and `remove` the paths of the old ones. If there are many files,
      `side` names a side file that lists both kinds instead; `side_rows` is the number of rows in
      the files that it adds.
    - `gone` are the segments of which no row is left.
    - `incomplete_ingests` are the numbers of ingests with a partition key, of which this rewrite is
      the first to drop rows.
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
        """The number of rows in the added files."""
        return self.side_rows + sum(file.rows for file in self.add)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedTimes:
    """The corrected commit times of consecutive versions, in microseconds since 1970.

    The versions begin with `first`, and end before the version of the commit that corrects them.
    """

    first: int
    times_us: tuple[int, ...]

    def of(self, version: int) -> int | None:
        """Return the corrected time of a version, None if it was not corrected."""
        index = version - self.first
        if not 0 <= index < len(self.times_us):
            return None
        return self.times_us[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The action of a restore: the older version, and the changes back to its state.

    - `side` names the side file with the files, segments, logs and runs that come back or are
      removed.
    - `groups` are the rows of each group; these and the other counts are those of `version`.
    - `bases` are the bitmap bases by which the restored state is read.
    - `business` are the business snapshots of `version`, None if the current ones stay.
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

    - Each of the `ingested` files brings one segment. A segment is pending, without a row base,
      until a commit lists it in `processed`, which has ascending ids.
    - `removed_events` is the number of events in `remove_logs`; `forgotten` is true if some of
      these events are not in any other log.
    - `discarded` are pending segments that the table gives up. If nothing is left of an ingest
      then, `withdrawn` has its partition key and number, and `unheld` has its number if its
      business snapshot was held back.
    - `replaced_tokens` are the tokens of earlier tries that had not committed. If such a try still
      runs, it cannot commit: its token is used.
    - `finished` names a business snapshot that accepts no more rows.
    - `unfinished` is true in a version 0 whose table does not exist before version 1 has its rows.
    """

    spec: TableSpec | None = None
    unfinished: bool = False
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
        """The ids of the processed segments."""
        return frozenset(segment.id for segment in self.processed)

    @property
    def gives_row_ids(self) -> bool:
        """True if the commit assigns outside row ids: then it has a `first_row_id`."""
        return self.row_ids > 0

    @property
    def visible_rows(self) -> int:
        """The rows that become visible. Their row ids precede those of added files."""
        return sum(segment.rows for segment in self.processed)

    @property
    def row_ids(self) -> int:
        """The number of outside row ids that the commit assigns."""
        if self.rewrite is None:
            return self.visible_rows
        return self.visible_rows + self.rewrite.added_rows

    def check_reported(self, number: int | None) -> None:
        """Raise ReportError if a task of this job reported a file that cannot exist.

        Files in a side file were checked when the side file was written.
        """
        check_ingested(self.ingested, number)
        rewritten = self.rewrite.add if self.rewrite else ()
        check_files((*rewritten, *self.add_logs, *self.add_runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A link of the chain: it names the write id of the commit before it.

    `writer_us` is the time of the writer's own clock, None if it equals `timestamp_us`.
    `first_row_id` is the first outside row id that the commit assigns, None if it assigns none.
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
    """Encode JSON in the only form that the format allows."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def seal(body: bytes) -> bytes:
    """Wrap a JSON document in an outer one with its checksum; `unseal` verifies it."""
    return _OPEN + b"%08x" % zlib.crc32(body) + _BODY + body + _CLOSE


def unseal(data: bytes, path: str) -> Any:
    """Return the JSON document in a sealed one, decoded.

    Raises FormatError if its checksum is wrong.
    """
    # Pre-releases wrote `commit` instead of `body`
    if _PRE_RELEASE.match(data):
        raise pre_release(path)
    body = data[_BODY_START : -len(_CLOSE)]
    if data != seal(body):
        raise FormatError(
            f"{path} is damaged: its checksum does not match; restore the file from a backup"
        )
    with decoding(path, "JSON"):
        return checked.mapped(checked.parse_canonical(body))


def encode_commit(commit: Commit) -> bytes:
    body: dict[str, Any] = {
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
    }
    may_be_absent = {
        "writer_us": commit.writer_us,
        "first_row_id": commit.first_row_id,
        "business_snapshot": commit.business_snapshot,
    }
    body |= _without_none(may_be_absent)
    if commit.positions:
        body["positions"] = positions_to_json(commit.positions)
    return seal(canonical_json(body))


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def encode_readable(commit: Commit) -> bytes:
    """Encode a commit, and check that a reader decodes the same commit from it.

    Raises InvalidInputError otherwise: a commit that cannot be read makes the table unreadable, and
    cannot be taken back.
    """
    refusal = (
        f"version {commit.version} was not written, because no reader would accept its content"
    )
    try:
        data = encode_commit(commit)
        read_back = decode_commit(data, "it")
        # Only names come from callers: the types of all other values are checked
        is_same = _names_in(read_back) == _names_in(commit)
    except (AttributeError, FormatError, RecursionError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{refusal} ({error}); correct the arguments of this {commit.operation}"
        ) from error
    if not is_same:
        raise InvalidInputError(
            f"{refusal}: a name in this {commit.operation} is not a text; pass every name as a text"
        )
    return data


def _names_in(commit: Commit) -> tuple[object, ...]:
    """Return the names that callers passed, to compare them with the names read back.

    The two differ if a name is not a text: JSON silently turns keys into texts.
    """
    actions = commit.actions
    application = commit.application
    return (
        commit.token,
        None if application is None else tuple(application),
        set(commit.positions),
        commit.partition_key,
        commit.business_snapshot,
        tuple(actions.replaced_tokens),
        dict(actions.savepoints),
        tuple(actions.released),
        actions.finished,
    )


def check_format(body: Mapping[str, Any], path: str) -> None:
    """Raise FormatError if a document was written in another format version."""
    if body.get("format") != FORMAT_VERSION:
        raise FormatError(
            f"{path} has format {body.get('format')!r}, but this version of opal-lake reads only "
            f"format {FORMAT_VERSION}; upgrade opal-lake"
        )


def decode_commit(data: bytes, path: str) -> Commit:
    body = unseal(data, path)
    check_format(body, path)
    with decoding(path, "a commit"):
        return _commit_from_json(body)


def _commit_from_json(body: Mapping[str, Any]) -> Commit:
    return Commit(
        version=checked.count(body["version"]),
        table_id=checked.plain_id(body["table_id"]),
        write_id=checked.plain_id(body["write_id"]),
        previous_write_id=checked.optional(body["previous_write_id"], checked.plain_id),
        timestamp_us=checked.moment(body["timestamp_us"]),
        operation=checked.text(body["operation"]),
        writer_us=checked.if_present(body, "writer_us", checked.word),
        number=checked.optional(body["number"], checked.count),
        token=checked.optional(body["token"], checked.text),
        application=_application_from_json(body["application"]),
        positions=positions_from_json(body.get("positions", {})),
        partition_key=checked.optional(body["partition_key"], checked.text),
        business_snapshot=checked.if_present(body, "business_snapshot", checked.business_snapshot),
        epoch=checked.word(body["epoch"]),
        first_row_id=checked.if_present(body, "first_row_id", checked.count),
        changes_view=checked.flag(body["changes_view"]),
        result=checked_result(body["result"]),
        actions=actions_from_json(checked.mapped(body["actions"])),
    )


def _application_from_json(data: Any) -> tuple[str, int] | None:
    if not data:
        return None
    return checked.text(data[0]), checked.count(data[1])


def actions_to_json(actions: Actions) -> dict[str, Any]:
    """Encode the changes of a commit; fields without a value are absent."""
    side = actions.ingested_side
    parts: dict[str, Any] = {
        "spec": spec_to_json(actions.spec) if actions.spec else None,
        "unfinished": actions.unfinished,
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
    # 0 is a valid floor and oldest version: only None means that they are absent
    numbers = {"floor": actions.floor, "oldest_version": actions.oldest_version}
    return _without_empty(parts) | _without_none(numbers)


def actions_from_json(data: Mapping[str, Any]) -> Actions:
    return Actions(
        spec=checked.if_present(data, "spec", spec_from_json),
        unfinished=checked.flag(data.get("unfinished", False)),
        ingested=tuple(map(new_file_from_json, data.get("ingested", ()))),
        ingested_side=checked.if_present(data, "ingested_side", side_from_json),
        processed=_processed_from_json(checked.listed(data.get("processed", []))),
        discarded=tuple(map(discarded_from_json, checked.listed(data.get("discarded", [])))),
        withdrawn=tuple(map(ingest_of_key, checked.listed(data.get("withdrawn", [])))),
        unheld=checked.counts(data.get("unheld", ())),
        replaced_tokens=_texts(data, "replaced_tokens"),
        add_logs=tuple(map(log_from_json, data.get("add_logs", ()))),
        add_runs=tuple(map(run_from_json, data.get("add_runs", ()))),
        remove_runs=_texts(data, "remove_runs"),
        abandoned=checked.counts(data.get("abandoned", ())),
        rewrite=checked.if_present(data, "rewrite", rewrite_from_json),
        remove_logs=_texts(data, "remove_logs"),
        removed_events=checked.count(data.get("removed_events", 0)),
        forgotten=checked.flag(data.get("forgotten", False)),
        floor=checked.optional(data.get("floor"), checked.word),
        oldest_version=checked.optional(data.get("oldest_version"), checked.count),
        savepoints=checked.numbered(data.get("savepoints", {})),
        released=_texts(data, "released"),
        finished=checked.if_present(data, "finished", checked.business_snapshot),
        corrected_times=checked.if_present(data, "corrected_times", _times_from_json),
        restored=checked.if_present(data, "restored", restored_from_json),
    )


def _texts(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Decode a list of texts that may be absent."""
    return tuple(map(checked.text, checked.listed(data.get(name, ()))))


def _processed_from_json(data: Sequence[Any]) -> tuple[Segment, ...]:
    """Decode processed segments; raise ValueError unless their ids ascend.

    They take their row ids in the order of the list.
    """
    segments = tuple(map(segment_from_json, data))
    for segment in segments:
        if segment.row_base is not None:
            raise ValueError(f"segment {segment.id} has a row base before it is processed")
    if any(second.id <= first.id for first, second in pairwise(segments)):
        raise ValueError("its processed segments are not in ascending order")
    return segments


def ingest_of_key(data: Any) -> tuple[str, int]:
    """Decode a pair of a partition key and the number of an ingest with that key."""
    key, number = checked.listed(data)
    return checked.text(key), checked.count(number)


def _times_to_json(times: CorrectedTimes | None) -> list[int] | None:
    if times is None:
        return None
    return [times.first, *times.times_us]


def _times_from_json(data: Any) -> CorrectedTimes:
    first, *times_us = checked.listed(data)
    return CorrectedTimes(first=checked.count(first), times_us=tuple(map(checked.word, times_us)))


def restored_to_json(restored: Restored) -> dict[str, Any]:
    body: dict[str, Any] = {
        "version": restored.version,
        "side": side_to_json(restored.side),
        "groups": [list(pair) for pair in sorted(restored.groups.items())],
        "totals": [restored.rows, restored.pending, restored.events],
        "bases": [base_to_json(base) for base in restored.bases],
    }
    if restored.incomplete_ingests:
        body["thinned"] = list(restored.incomplete_ingests)
    if restored.business is not None:
        body["business_snapshots"] = business_to_json(restored.business)
    return body


def restored_from_json(data: Any) -> Restored:
    fields = checked.mapped(data)
    rows, pending, events = map(checked.count, fields["totals"])
    return Restored(
        version=checked.count(fields["version"]),
        side=side_from_json(fields["side"]),
        groups=rows_by_group(fields["groups"]),
        rows=rows,
        pending=pending,
        events=events,
        bases=tuple(base_from_json(base) for base in checked.listed(fields["bases"])),
        incomplete_ingests=checked.counts(fields.get("thinned", ())),
        business=checked.if_present(fields, "business_snapshots", business_from_json),
    )


def rows_by_group(data: Any) -> dict[int, int]:
    """Decode pairs of a group and its number of rows."""
    return {checked.count(group): checked.count(rows) for group, rows in data}


def rewrite_to_json(rewrite: Rewrite) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "add": [file_to_json(file) for file in rewrite.add],
        "remove": list(rewrite.remove),
        "side": side_to_json(rewrite.side) if rewrite.side else None,
        "dropped_rows": rewrite.dropped_rows,
        "gone": [segment_to_json(segment) for segment in rewrite.gone],
        "thinned": list(rewrite.incomplete_ingests),
    }
    fields = _without_empty(parts)
    if rewrite.side:
        # Also if it is 0: `side` and `side_rows` are always present together
        fields["side_rows"] = rewrite.side_rows
    return fields


def rewrite_from_json(data: Mapping[str, Any]) -> Rewrite:
    if ("side" in data) != ("side_rows" in data):
        raise ValueError("its rewrite has only one of `side` and `side_rows`")
    if "side" in data and ("add" in data or "remove" in data):
        raise ValueError("its rewrite lists files in a side file and also in itself")
    return Rewrite(
        add=tuple(map(new_file_from_json, data.get("add", ()))),
        remove=_texts(data, "remove"),
        side=checked.if_present(data, "side", side_from_json),
        side_rows=checked.count(data.get("side_rows", 0)),
        dropped_rows=checked.count(data.get("dropped_rows", 0)),
        gone=tuple(map(segment_from_json, data.get("gone", ()))),
        incomplete_ingests=checked.counts(data.get("thinned", ())),
    )


def file_to_json(file: DataFile) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "path": file.path,
        "size": file.size,
        "crc32": file.crc32,
        "footer": [file.footer_bytes, file.footer_crc32],
        "rows": file.rows,
        "group": file.group,
        "segments": list(file.segments),
        "bounds": bounds_to_json(file.bounds),
    }
    if file.cluster:
        fields["cluster"] = [file.cluster.number, list(file.cluster.columns)]
    if file.codec:
        fields["codec"] = file.codec
    if file.floor is not None:
        fields["floor"] = file.floor
    if file.first_row_id is not None:
        fields["first_row_id"] = file.first_row_id
    return fields


def new_file_from_json(data: Mapping[str, Any]) -> DataFile:
    """Decode a file that a commit adds.

    Raises ValueError if it has a `first_row_id`: only the list of files has the ids that a file
    reserves.
    """
    file = file_from_json(data)
    if file.first_row_id is not None:
        raise ValueError(f"{file.path} must not have a first_row_id in the commit that adds it")
    return file


def file_from_json(data: Mapping[str, Any]) -> DataFile:
    size = checked.count(data["size"])
    footer_bytes, footer_crc32 = data["footer"][0], data["footer"][1]
    file = DataFile(
        path=own_path(PathKind.DATA, data["path"]),
        size=size,
        crc32=checked.crc(data["crc32"]),
        footer_bytes=checked.count(footer_bytes),
        footer_crc32=checked.crc(footer_crc32),
        rows=check_rows(checked.count(data["rows"]), size),
        group=checked.word(data["group"]),
        segments=checked.counts(data["segments"]),
        bounds=bounds_from_json(data["bounds"]),
        cluster=_cluster_from_json(data.get("cluster")),
        codec=checked.text(data.get("codec", "")),
        floor=checked.optional(data.get("floor"), checked.word),
        first_row_id=checked.if_present(data, "first_row_id", checked.count),
    )
    has_footer = 0 < file.footer_bytes <= file.size
    if not file.rows or not file.segments or not has_footer:
        raise ValueError(
            f"{file.path} has {file.rows} rows, {len(file.segments)} segments, and a footer of "
            f"{file.footer_bytes} of its {file.size} bytes"
        )
    return file


def _cluster_from_json(data: Any) -> Cluster | None:
    if not data:
        return None
    return Cluster(number=checked.count(data[0]), columns=checked.counts(data[1]))
