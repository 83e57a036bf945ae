"""One commit and its bytes (FORMAT, commits). A version is the fold of the commits 0 to v."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opal_lake.bounds import bounds_from_json, bounds_to_json
from opal_lake.errors import FormatError
from opal_lake.segment import Cluster, DataFile, LogFile, RunFile, Segment, segment_from_json, segment_to_json
from opal_lake.table_spec import TableSpec, spec_from_json, spec_to_json

FORMAT_VERSION = 1
_OPEN, _BODY, _CLOSE = b'{"crc32":"', b'","commit":', b"}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFile:
    """A bulk list of files that is too long for the commit itself."""

    path: str
    size: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Files that stand for others: the same rows, but for those that were dropped. `side` lists both if they are many."""

    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    side: SideFile | None = None
    dropped_rows: int = 0
    gone: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """What a commit changes. `ingested` files bring a segment each, which is pending until `processed` names it.

    `removed_events` are those of the `remove_logs`; `forgotten` says that some of them are in no other log.
    """

    spec: TableSpec | None = None
    ingested: tuple[DataFile, ...] = ()
    ingested_side: SideFile | None = None
    processed: tuple[int, ...] = ()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A link of the chain: it names its own write and the one before."""

    version: int
    table_id: str
    write_id: str
    previous_write_id: str | None
    timestamp_us: int
    operation: str
    number: int | None = None
    token: str | None = None
    application: tuple[str, int] | None = None
    partition_key: str | None = None
    epoch: int = 0
    changes_view: bool = False
    result: Mapping[str, Any] = field(default_factory=dict)
    actions: Actions = Actions()


def canonical_json(data: Any) -> bytes:
    """The one way this format writes JSON."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def seal(body: bytes) -> bytes:
    """A JSON document that carries the checksum of its own content."""
    return _OPEN + b"%08x" % zlib.crc32(body) + _BODY + body + _CLOSE


def unseal(data: bytes, path: str) -> Any:
    """The content, if the checksum holds."""
    start = len(_OPEN) + 8 + len(_BODY)
    body = data[start : -len(_CLOSE)]
    if data != seal(body):
        raise FormatError(f"{path} is damaged: its checksum does not hold; restore the file from a backup")
    return json.loads(body)


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
    }
    return seal(canonical_json(body))


def decode_commit(data: bytes, path: str) -> Commit:
    body = unseal(data, path)
    if body.get("format") != FORMAT_VERSION:
        raise FormatError(f"{path} has format {body.get('format')!r}, this version reads {FORMAT_VERSION}; upgrade airflow-provider-opal")
    try:
        application = body["application"]
        return Commit(
            version=body["version"],
            table_id=body["table_id"],
            write_id=body["write_id"],
            previous_write_id=body["previous_write_id"],
            timestamp_us=body["timestamp_us"],
            operation=body["operation"],
            number=body["number"],
            token=body["token"],
            application=(application[0], application[1]) if application else None,
            partition_key=body.get("partition_key"),
            epoch=body["epoch"],
            changes_view=body["changes_view"],
            result=body["result"],
            actions=actions_from_json(body["actions"]),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise FormatError(f"{path} lacks a part of a commit: {error!r}; restore the file from a backup") from error


def actions_to_json(actions: Actions) -> dict[str, Any]:
    """Only what there is."""
    side = actions.ingested_side
    parts: dict[str, Any] = {
        "spec": spec_to_json(actions.spec) if actions.spec else None,
        "ingested": [file_to_json(file) for file in actions.ingested],
        "ingested_side": side_to_json(side) if side else None,
        "processed": list(actions.processed),
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
    }
    optional = {"floor": actions.floor, "oldest_version": actions.oldest_version}  # which may be 0
    return {name: value for name, value in parts.items() if value} | {name: value for name, value in optional.items() if value is not None}


def actions_from_json(data: Mapping[str, Any]) -> Actions:
    return Actions(
        spec=spec_from_json(data["spec"]) if "spec" in data else None,
        ingested=tuple(map(file_from_json, data.get("ingested", ()))),
        ingested_side=side_from_json(data["ingested_side"]) if "ingested_side" in data else None,
        processed=tuple(data.get("processed", ())),
        add_logs=tuple(map(log_from_json, data.get("add_logs", ()))),
        add_runs=tuple(map(run_from_json, data.get("add_runs", ()))),
        remove_runs=tuple(data.get("remove_runs", ())),
        abandoned=tuple(data.get("abandoned", ())),
        rewrite=rewrite_from_json(data["rewrite"]) if "rewrite" in data else None,
        remove_logs=tuple(data.get("remove_logs", ())),
        removed_events=data.get("removed_events", 0),
        forgotten=data.get("forgotten", False),
        floor=data.get("floor"),
        oldest_version=data.get("oldest_version"),
        savepoints=data.get("savepoints", {}),
        released=tuple(data.get("released", ())),
    )


def side_to_json(side: SideFile) -> list[Any]:
    return [side.path, side.size, side.crc32]


def side_from_json(data: Sequence[Any]) -> SideFile:
    return SideFile(path=data[0], size=data[1], crc32=data[2])


def rewrite_to_json(rewrite: Rewrite) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "add": [file_to_json(file) for file in rewrite.add],
        "remove": list(rewrite.remove),
        "side": side_to_json(rewrite.side) if rewrite.side else None,
        "dropped_rows": rewrite.dropped_rows,
        "gone": [segment_to_json(segment) for segment in rewrite.gone],
    }
    return {name: value for name, value in parts.items() if value}


def rewrite_from_json(data: Mapping[str, Any]) -> Rewrite:
    return Rewrite(
        add=tuple(map(file_from_json, data.get("add", ()))),
        remove=tuple(data.get("remove", ())),
        side=side_from_json(data["side"]) if "side" in data else None,
        dropped_rows=data.get("dropped_rows", 0),
        gone=tuple(map(segment_from_json, data.get("gone", ()))),
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
    }


def file_from_json(data: Mapping[str, Any]) -> DataFile:
    return DataFile(
        path=data["path"],
        size=data["size"],
        crc32=data["crc32"],
        footer_bytes=data["footer"][0],
        footer_crc32=data["footer"][1],
        rows=data["rows"],
        group=data["group"],
        segments=tuple(data["segments"]),
        bounds=bounds_from_json(data["bounds"]),
        cluster=Cluster(number=data["cluster"][0], columns=tuple(data["cluster"][1])) if "cluster" in data else None,
        codec=data.get("codec", ""),
        floor=data.get("floor"),
    )


def log_to_json(log: LogFile) -> dict[str, Any]:
    return {
        "path": log.path,
        "size": log.size,
        "crc32": log.crc32,
        "events": log.events,
        "groups": list(log.groups),
        "until": [log.least_until, log.greatest_until],
        "version": log.version,
    }


def log_from_json(data: Mapping[str, Any]) -> LogFile:
    return LogFile(
        path=data["path"],
        size=data["size"],
        crc32=data["crc32"],
        events=data["events"],
        groups=tuple(data["groups"]),
        least_until=data["until"][0],
        greatest_until=data["until"][1],
        version=data["version"],
    )


def run_to_json(run: RunFile) -> dict[str, Any]:
    return {
        "path": run.path,
        "size": run.size,
        "crc32": run.crc32,
        "entries": run.entries,
        "hashes": [run.hash_low, run.hash_high],
    }


def run_from_json(data: Mapping[str, Any]) -> RunFile:
    return RunFile(
        path=data["path"],
        size=data["size"],
        crc32=data["crc32"],
        entries=data["entries"],
        hash_low=data["hashes"][0],
        hash_high=data["hashes"][1],
    )
