"""A second reader of the Opal table format, written from FORMAT.md alone.

`read_table` opens the head, folds the lists of the version, collects the events that hide rows,
and reads the data files without these rows. Sections and invariants are those of FORMAT.md.

It reads a table at rest: no writer and no retention may be at work meanwhile. It uses checkpoints
and bitmap bases, but neither pages of the log nor the key store.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc
from pyroaring import BitMap

SEALED_LIMIT = 64 * 2**20
ROWS_A_BYTE = 4096

LOG = "_opal/log/"
CHECKPOINTS = "_opal/checkpoints/"
SECTIONS = "_opal/checkpoints/sections/"
SIDE = "_opal/side/"
SEGMENT_LOGS = "_opal/segment_logs/"
BITMAPS = "_opal/bitmaps/"
DATA = "data/"

SEAL = re.compile(rb'\{"crc32":"([0-9a-f]{8})","body":(.*)\}\n', re.DOTALL)
PATH = re.compile(r"[A-Za-z0-9_.\-~%=/]{1,1024}")
COMMIT_NAME = re.compile(r"([0-9]{20})\.json")
CHECKPOINT_NAME = re.compile(r"([0-9]{20})-[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}\.json")
DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")

# The lists that a reader of rows needs; a checkpoint has further ones.
LISTS = ("files", "pending", "logs")
# Where an item has its key. A base has its path for one.
POSITION_OF_KEY = {"files": "path", "pending": 0, "logs": "path", "bases": 1}

ATOMIC_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
# ORC stores these as plain integers.
ORC_TYPES = {"date": pa.int32(), "timestamp": pa.int64(), "timestamp_ntz": pa.int64()}

# The offsets of rows that are not visible, by segment.
Hidden = dict[int, BitMap]


class UnreadableError(Exception):
    """The version or the event time cannot be read."""


class DamagedError(Exception):
    """A checksum, a reference or a rule of the format does not hold."""


def read_table(
    root: str | os.PathLike, version: int | None = None, event_time: int | None = None
) -> pa.Table:
    """Read the visible rows at a version, by default the head, as of an order word."""
    folder = Folder(os.fspath(root))
    head = open_head(folder)
    state = head if version is None else open_version(folder, head, version)
    if event_time is not None:
        check_event_time(state, event_time)
    hidden = collect_events(folder, state, event_time)
    tables = [logical_schema(state.spec).empty_table()]
    pending = state.lists["pending"]
    for item in state.lists["files"].values():
        if pending.keys().isdisjoint(item["segments"]):
            rows = read_data_file(folder, state.spec, item, hidden, event_time)
            tables.append(rows)
    return without_built_in(pa.concat_tables(tables), state.spec)


def check_event_time(state: State, event_time: int) -> None:
    """Refuse an event time that the version does not have."""
    if not state.spec["keys"]:
        raise UnreadableError("a table without keys has no event times")
    if state.floor is not None and event_time < state.floor:
        raise UnreadableError(f"event time {event_time} is below the floor {state.floor}")


# -- Files below the root (sections 2 and 3) -------------------------------------------------------


class Folder:
    """The table's root. It checks every path, and follows no link below the root."""

    def __init__(self, root: str) -> None:
        self.root = root

    def full_path(self, path: str) -> str:
        """Check a relative path, and that nothing on its way is a link (I23)."""
        parts = path.split("/")
        if not PATH.fullmatch(path) or any(part in ("", ".", "..") for part in parts):
            raise DamagedError(f"{path!r} is not a path of this format")
        full = self.root
        for part in parts:
            full = os.path.join(full, part)
            if os.path.islink(full):
                raise DamagedError(f"{path} leads over a link")
        return full

    def names(self, path: str) -> list[str]:
        """List the names in a folder; one that does not exist has none."""
        full = self.full_path(path.rstrip("/"))
        return sorted(os.listdir(full)) if os.path.isdir(full) else []

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return os.path.lexists(self.full_path(path))

    def read(self, path: str, limit: int) -> bytes:
        """Read a regular file of at most `limit` bytes."""
        full = self.full_path(path)
        if not os.path.lexists(full):
            raise DamagedError(f"{path} is missing")
        if not stat.S_ISREG(os.lstat(full).st_mode):
            raise DamagedError(f"{path} is not a regular file")
        if os.path.getsize(full) > limit:
            raise DamagedError(f"{path} has more than {limit} bytes")
        with open(full, "rb") as file:
            return file.read(limit)

    def referenced(self, kind: str, path: str, size: int, crc32: int) -> bytes:
        """Read the file of a reference, which lies below the folder of its kind (I9, I23)."""
        if not path.startswith(kind):
            raise DamagedError(f"{path} is not below {kind}")
        data = self.read(path, size)
        if len(data) != size or zlib.crc32(data) != crc32:
            raise DamagedError(f"{path} does not have its size and checksum")
        return data


@contextmanager
def decoding(path: str) -> Iterator[None]:
    """Report bytes that cannot be decoded as damage of their file."""
    try:
        yield
    except (OSError, ValueError, RecursionError, pa.ArrowException) as error:
        raise DamagedError(f"{path} cannot be decoded: {error}") from error


def read_sealed(folder: Folder, path: str, version: int) -> dict[str, Any]:
    """Read the body of a sealed commit or root of a version (I1, I6)."""
    match = SEAL.fullmatch(folder.read(path, SEALED_LIMIT))
    if match is None or match[1] != b"%08x" % zlib.crc32(match[2]):
        raise DamagedError(f"{path} is not sealed")
    with decoding(path):
        document = json.loads(match[2])
    if document["format"] != 1 or document["version"] != version:
        raise DamagedError(f"{path} does not hold version {version} in format 1")
    return document


def json_lines(path: str, data: bytes) -> list[Any]:
    """Inflate JSON lines and parse them."""
    limit = max(16 * 2**20, 1024 * len(data))
    with decoding(path):
        text = pa.input_stream(pa.BufferReader(data), compression="zstd").read(limit + 1)
        if len(text) > limit:
            raise ValueError(f"it inflates to more than {limit} bytes")
        return [json.loads(line) for line in text.splitlines()]


# -- The state of a version (section 6) ------------------------------------------------------------


@dataclass
class State:
    """The state of a version that a reader of rows needs: the fold of its commits."""

    version: int = -1
    write_id: str | None = None
    table_id: str | None = None
    epoch: int = 0
    next_row_id: int = 0
    spec: dict[str, Any] = field(default_factory=dict)
    floor: int | None = None
    oldest_version: int = 0
    savepoints: dict[str, int] = field(default_factory=dict)
    unfinished: bool = False
    lists: dict[str, dict] = field(default_factory=lambda: {name: {} for name in LISTS})
    bases: list[list] = field(default_factory=list)


def open_head(folder: Folder) -> State:
    """Open the newest version."""
    state = nearest_checkpoint(folder, None)
    while folder.exists(commit_path(state.version + 1)):
        apply_commit(folder, state)
    if state.version < 0:
        raise DamagedError("the folder has no table")
    matches = [COMMIT_NAME.fullmatch(name) for name in folder.names(LOG)]
    if any(match and int(match[1]) > state.version for match in matches):
        raise DamagedError(f"commit {state.version + 1} is missing, but a later one exists")
    if state.unfinished:
        raise UnreadableError("the table waits for its first rows, so that it does not exist yet")
    return state


def open_version(folder: Folder, head: State, version: int) -> State:
    """Open a version that the head allows to be read (section 17)."""
    in_range = head.oldest_version <= version <= head.version
    if not in_range and version not in head.savepoints.values():
        raise UnreadableError(
            f"version {version} is not one of {head.oldest_version} to {head.version}"
        )
    state = nearest_checkpoint(folder, version)
    while state.version < version:
        apply_commit(folder, state)
    if state.table_id != head.table_id:
        raise DamagedError(f"version {version} is of another table")
    return state


def commit_path(version: int) -> str:
    """Return the path of a commit."""
    return f"{LOG}{version:020d}.json"


def nearest_checkpoint(folder: Folder, version: int | None) -> State:
    """Open the newest checkpoint up to a version; without one begin before version 0."""
    for name in folder.names(CHECKPOINTS):
        match = CHECKPOINT_NAME.fullmatch(name)
        if match:
            # Names sort with the newest first
            checkpoint_version = 10**20 - 1 - int(match[1])
            if version is None or checkpoint_version <= version:
                return read_checkpoint(folder, CHECKPOINTS + name, checkpoint_version)
    return State()


def read_checkpoint(folder: Folder, path: str, version: int) -> State:
    """Read a root and those of its lists that a reader of rows needs."""
    root = read_sealed(folder, path, version)
    lists = {name: read_list(folder, path, root, name) for name in (*LISTS, "bases")}
    bases = lists.pop("bases")
    return State(
        version=version,
        write_id=root["write_id"],
        table_id=root["table_id"],
        epoch=root["epoch"],
        next_row_id=root["next_row_id"],
        spec=root["spec"],
        floor=root["floor"],
        oldest_version=root.get("oldest_version", 0),
        savepoints=root.get("savepoints", {}),
        lists=lists,
        bases=list(bases.values()),
    )


def read_list(folder: Folder, root_path: str, root: dict, name: str) -> dict:
    """Read a list of a checkpoint from its parts, oldest first (I7)."""
    items: dict = {}
    for part in root["sections"].get(name, []):
        if len(part) == 2:
            with decoding(root_path):
                data = base64.b64decode(part[0], validate=True)
            lines = json_lines(root_path, data)
        else:
            path, size, crc32, _, count = part
            lines = json_lines(path, folder.referenced(SECTIONS, path, size, crc32))
            if len(lines) != count:
                raise DamagedError(f"{path} has {len(lines)} lines instead of {count}")
        for line in lines:
            change_list(items, name, line)
    return items


def change_list(items: dict, name: str, line: Any) -> None:
    """Apply a line: an item, which moves to the end, or the key of one that is gone."""
    if isinstance(line, dict) and "gone" in line:
        items.pop(line["gone"], None)
        return
    key = line[POSITION_OF_KEY[name]]
    items.pop(key, None)
    items[key] = line


# -- Commits (section 4) ---------------------------------------------------------------------------


def apply_commit(folder: Folder, state: State) -> None:
    """Take the state to the next version."""
    version = state.version + 1
    commit = read_sealed(folder, commit_path(version), version)
    check_chain(state, commit)
    actions = commit["actions"]
    state.version = version
    state.write_id = commit["write_id"]
    state.table_id = commit["table_id"]
    state.epoch = commit["epoch"]
    state.spec = actions.get("spec", state.spec)
    state.unfinished = actions.get("unfinished", False)
    state.floor = actions.get("floor", state.floor)
    state.oldest_version = actions.get("oldest_version", state.oldest_version)

    added, removed = read_rewrite(folder, actions)
    give_out_row_ids(state, commit, added)
    apply_segments(folder, state, actions)
    change_items(state.lists["files"], added, removed)
    apply_logs(state, actions)
    apply_savepoints(state, actions)
    if actions.get("forgotten"):
        state.bases = []
    if "restored" in actions:
        apply_restore(folder, state, actions["restored"])


def check_chain(state: State, commit: dict) -> None:
    """Verify that a commit follows the state (I2)."""
    version = commit["version"]
    if commit["previous_write_id"] != state.write_id:
        raise DamagedError(f"commit {version} does not follow the version before it")
    if state.table_id not in (None, commit["table_id"]):
        raise DamagedError(f"commit {version} is of another table")
    if commit["epoch"] < state.epoch:
        raise DamagedError(f"the epoch of commit {version} is lower than the one before")


def give_out_row_ids(state: State, commit: dict, added: list[dict]) -> None:
    """Count the outside row ids of a commit, which follow those before it (I32)."""
    count = sum(rows for _, rows, _ in commit["actions"].get("processed", []))
    count += sum(item["rows"] for item in added)
    first = commit.get("first_row_id")
    expected = state.next_row_id if count else None
    if first != expected:
        raise DamagedError(
            f"commit {commit['version']} gives out row ids from {first}, not {expected}"
        )
    state.next_row_id += count


def apply_segments(folder: Folder, state: State, actions: dict) -> None:
    """Add ingested files and pending segments; remove processed and discarded ones."""
    ingested = actions.get("ingested", [])
    if "ingested_side" in actions:
        ingested = read_side(folder, actions["ingested_side"])
    discarded = actions.get("discarded", [])
    processed_ids = [segment for segment, _, _ in actions.get("processed", [])]
    discarded_ids = [segment for _, segment, _, _ in discarded]
    change_items(state.lists["files"], ingested, [path for path, _, _, _ in discarded])
    pending = state.lists["pending"]
    for item in ingested:
        [segment] = item["segments"]
        pending[segment] = item
    remove_keys(pending, processed_ids + discarded_ids)


def read_rewrite(folder: Folder, actions: dict) -> tuple[list[dict], list[str]]:
    """Return the files that a rewrite adds, and the paths that it removes."""
    rewrite = actions.get("rewrite", {})
    if "side" not in rewrite:
        return rewrite.get("add", []), rewrite.get("remove", [])
    lines = read_side(folder, rewrite["side"])
    added = [line for line in lines if isinstance(line, dict)]
    removed = [line for line in lines if isinstance(line, str)]
    return added, removed


def read_side(folder: Folder, reference: list) -> list[Any]:
    """Read a list that is too long for its commit."""
    path, size, crc32 = reference
    return json_lines(path, folder.referenced(SIDE, path, size, crc32))


def apply_logs(state: State, actions: dict) -> None:
    """Change the segment logs; version -1 stands for that of the commit."""
    added = []
    for item in actions.get("add_logs", []):
        version = state.version if item["version"] == -1 else item["version"]
        added.append({**item, "version": version})
    change_items(state.lists["logs"], added, actions.get("remove_logs", []))


def apply_savepoints(state: State, actions: dict) -> None:
    """Release savepoints, then set others (§15).

    A finished business snapshot sets a savepoint too.
    """
    released = actions.get("released", [])
    savepoints = {name: at for name, at in state.savepoints.items() if name not in released}
    if "finished" in actions:
        savepoints[actions["finished"]] = state.version - 1
    state.savepoints = savepoints | actions.get("savepoints", {})


def apply_restore(folder: Folder, state: State, restored: dict) -> None:
    """Change the lists into those of the version that is restored (section 13)."""
    for name, line in read_side(folder, restored["side"]):
        if name in LISTS:
            change_list(state.lists[name], name, line)
    state.bases = restored.get("bases", [])


def change_items(items: dict, added: list[dict], removed: list[str]) -> None:
    """Remove paths from a list, and add items that it does not have."""
    remove_keys(items, removed)
    for item in added:
        if item["path"] in items:
            raise DamagedError(f"{item['path']} is added twice")
        items[item["path"]] = item


def remove_keys(items: dict, keys: list) -> None:
    """Remove items from a list that has them."""
    for key in keys:
        if key not in items:
            raise DamagedError(f"{key} is removed from a list that does not have it")
        del items[key]


# -- Events (sections 9 and 10) --------------------------------------------------------------------


def collect_events(folder: Folder, state: State, event_time: int | None) -> Hidden:
    """Collect the rows that events hide, from bases and from logs."""
    hidden: Hidden = defaultdict(BitMap)
    covered = -1
    if event_time is None:
        for base in state.bases:
            read_base(folder, state, base, hidden)
            covered = max(covered, base[4])
    for item in state.lists["logs"].values():
        if item["version"] > covered:
            read_segment_log(folder, item, event_time, hidden)
    return hidden


def read_base(folder: Folder, state: State, base: list, hidden: Hidden) -> None:
    """Add the rows that a bitmap base marks."""
    group, path, size, crc32, version, write_id = base[:6]
    table_id = state.table_id
    origin = {"group": group, "table_id": table_id, "version": version, "write_id": write_id}
    if len(base) > 6:
        origin["after"] = base[6]
    data = folder.referenced(BITMAPS, path, size, crc32)
    position = 16 + int.from_bytes(data[8:12], "little")
    checksum = int.from_bytes(data[12:16], "little")
    if data[:8] != b"OPALBIT1" or zlib.crc32(data[16:position]) != checksum:
        raise DamagedError(f"{path} is not a bitmap base")
    with decoding(path):
        directory = json.loads(data[16:position])
        if directory["origin"] != origin:
            raise ValueError("it has another origin")
        for segment, count in directory["segments"]:
            hidden[segment] |= BitMap.deserialize(data[position : position + count])
            position += count
        if position != len(data):
            raise ValueError(f"its directory says that it has {position} bytes")


def read_segment_log(folder: Folder, item: dict, event_time: int | None, hidden: Hidden) -> None:
    """Add the events of a segment log, up to the event time if given (I16)."""
    path = item["path"]
    data = folder.referenced(SEGMENT_LOGS, path, item["size"], item["crc32"])
    table = decode(path, data, item["events"])
    segments = stored_column(path, table, "segment", pa.int64()).to_pylist()
    offsets = stored_column(path, table, "offset", pa.int32()).to_pylist()
    untils = stored_column(path, table, "until", pa.int64()).to_pylist()
    rows = list(zip(segments, offsets, strict=True))
    if not rows or rows != sorted(set(rows)) or min(offsets) < 0:
        raise DamagedError(f"{path} is not a sorted list of rows")
    if [min(untils), max(untils)] != item["until"]:
        raise DamagedError(f"{path} does not have the times that its commit records")
    for segment, offset, until in zip(segments, offsets, untils, strict=True):
        if event_time is None or until <= event_time:
            hidden[segment].add(offset)


# -- Data files (sections 8 and 10) ----------------------------------------------------------------


def read_data_file(
    folder: Folder, spec: dict, item: dict, hidden: Hidden, event_time: int | None
) -> pa.Table:
    """Read the visible rows of a data file, under their logical names and types."""
    path = item["path"]
    data = folder.referenced(DATA, path, item["size"], item["crc32"])
    footer_size, footer_crc32 = item["footer"]
    if zlib.crc32(data[len(data) - footer_size :]) != footer_crc32:
        raise DamagedError(f"the footer of {path} does not have its checksum")
    stored = decode(path, data, item["rows"])
    segments = stored_column(path, stored, "_opal_segment", pa.int64()).to_pylist()
    offsets = stored_column(path, stored, "_opal_offset", pa.int32()).to_pylist()
    if set(segments) != set(item["segments"]):
        raise DamagedError(f"{path} does not have the segments that its commit records (I11)")
    row_ids = zip(segments, offsets, strict=True)
    visible = [segment not in hidden or at not in hidden[segment] for segment, at in row_ids]
    rows = logical_rows(path, stored, spec)
    if event_time is not None:
        deltas = order_words(delta_column(rows, spec))
        in_time = [delta <= event_time for delta in deltas]
        visible = [shown and early for shown, early in zip(visible, in_time, strict=True)]
    return rows.filter(pa.array(visible, pa.bool_()))


def decode(path: str, data: bytes, rows: int) -> pa.Table:
    """Decode a file that has so many rows or events by its commit."""
    if rows > ROWS_A_BYTE * len(data):
        raise DamagedError(f"{path} is too small for {rows} rows")
    source = pa.BufferReader(data)
    with decoding(path):
        if path.endswith(".orc"):
            file = orc.ORCFile(source)
            count = file.nrows
        else:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            count = file.metadata.num_rows
        if count != rows:
            raise ValueError(f"it has {count} rows instead of {rows}")
        return file.read()


def stored_column(path: str, stored: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column of a file, which must have the type of the format (I10)."""
    if stored.schema.names.count(name) != 1 or stored.column(name).type != kind:
        raise DamagedError(f"{path} has no column {name} of type {kind}")
    return stored.column(name)


def logical_rows(path: str, stored: pa.Table, spec: dict) -> pa.Table:
    """Return the rows under logical names and types; an added column may be null.

    A file from before a change of columns has the columns of that time (section 5).
    """
    definition = spec["schema"]
    created_id = definition.get("created_id", definition["last_id"])
    replaced = ORC_TYPES if path.endswith(".orc") else {}
    schema = logical_schema(spec)
    columns = []
    for column, logical in zip(definition["fields"], schema, strict=True):
        physical = arrow_field(column, "physical", replaced)
        if column["id"] > created_id and physical.name not in stored.schema.names:
            chunks = [pa.array([initial_value(column)] * len(stored), logical.type)]
        else:
            if stored.schema.names.count(physical.name) != 1:
                raise DamagedError(f"{path} has no column {physical.name}")
            values = stored.column(physical.name)
            if not may_be_stored(values.type, column, replaced):
                raise DamagedError(f"{path} has a column {physical.name} of type {values.type}")
            if values.type == physical.type:
                # Both types have the same layout, so another view of the values is enough.
                chunks = [chunk.view(logical.type) for chunk in values.chunks]
            else:
                plain = [current(value, column["type"]) for value in values.to_pylist()]
                chunks = [pa.array(plain, logical.type)]
        columns.append(pa.chunked_array(chunks, logical.type))
    return pa.Table.from_arrays(columns, schema=schema)


def initial_value(column: dict) -> Any:
    """Return the value of an added column in the rows of a file that lacks it (section 5)."""
    value, kind = column.get("initial"), column["type"]
    if value is None:
        return None
    if kind == "binary":
        return bytes.fromhex(value)
    if kind == "date":
        return date(1970, 1, 1) + timedelta(days=value)
    if kind in ("timestamp", "timestamp_ntz"):
        zone = UTC if kind == "timestamp" else None
        return datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=value)
    return Decimal(value) if kind.startswith("decimal") else value


def may_be_stored(stored: pa.DataType, column: dict, replaced: dict[str, pa.DataType]) -> bool:
    """Return whether a file may have a field with this type: its own, or one from before (I10)."""
    kind = column["type"]
    if isinstance(kind, str):
        names = [*column.get("earlier", []), kind]
        return stored in [arrow_type(name, "physical", replaced) for name in names]
    if "array" in kind:
        return pa.types.is_list(stored) and may_be_stored(
            stored.value_type, kind["array"], replaced
        )
    if "map" in kind:
        key, value = kind["map"]
        return (
            pa.types.is_map(stored)
            and may_be_stored(stored.key_type, key, replaced)
            and may_be_stored(stored.item_type, value, replaced)
        )
    if not pa.types.is_struct(stored):
        return False
    types = {member.name: member.type for member in stored}
    known = [member for member in kind["struct"] if member["physical"] in types]
    return all(may_be_stored(types[member["physical"]], member, replaced) for member in known)


def current(value: Any, kind: Any) -> Any:
    """Return a stored value in the type that its column has now."""
    if value is None:
        return None
    if isinstance(kind, str):
        is_midnight = kind == "timestamp_ntz" and type(value) is date
        return datetime.combine(value, time()) if is_midnight else value
    if "array" in kind:
        return [current(element, kind["array"]["type"]) for element in value]
    if "map" in kind:
        key, item = kind["map"]
        return [(current(first, key["type"]), current(last, item["type"])) for first, last in value]
    members = kind["struct"]
    return {
        member["name"]: current(value.get(member["physical"]), member["type"]) for member in members
    }


# -- Types and order words (section 5) -------------------------------------------------------------


def logical_schema(spec: dict) -> pa.Schema:
    """Return the schema of the rows that a read returns."""
    return pa.schema([arrow_field(column, "name", {}) for column in spec["schema"]["fields"]])


def without_built_in(rows: pa.Table, spec: dict) -> pa.Table:
    """Return rows without the built-in delta column, which reads do not return."""
    names = [
        column["name"]
        for column in spec["schema"]["fields"]
        if column["id"] != spec["schema"].get("commit_id")
    ]
    return rows.select(names)


def arrow_field(column: dict, naming: str, replaced: dict[str, pa.DataType]) -> pa.Field:
    """Return the Arrow field of a field, named by `name` or by `physical`."""
    return pa.field(column[naming], arrow_type(column["type"], naming, replaced))


def arrow_type(kind: Any, naming: str, replaced: dict[str, pa.DataType]) -> pa.DataType:
    """Return the Arrow type of a type, with some atomic types replaced."""
    if isinstance(kind, str):
        return replaced.get(kind) or atomic_type(kind)
    if "struct" in kind:
        return pa.struct([arrow_field(member, naming, replaced) for member in kind["struct"]])
    if "array" in kind:
        return pa.list_(arrow_field(kind["array"], naming, replaced))
    key, value = (arrow_field(member, naming, replaced) for member in kind["map"])
    return pa.map_(key.type, value)


def atomic_type(name: str) -> pa.DataType:
    """Return the Arrow type of an atomic type."""
    match = DECIMAL.fullmatch(name)
    if match:
        return pa.decimal128(int(match[1]), int(match[2]))
    if name not in ATOMIC_TYPES:
        raise DamagedError(f"{name} is not a type of this format")
    return ATOMIC_TYPES[name]


def delta_column(rows: pa.Table, spec: dict) -> pa.ChunkedArray:
    """Return the delta column, which the spec names by its field id."""
    ids = [column["id"] for column in spec["schema"]["fields"]]
    return rows.column(ids.index(spec["delta"]))


def order_words(deltas: pa.ChunkedArray) -> list[int]:
    """Return the order words of deltas."""
    if pa.types.is_decimal(deltas.type):
        deltas = pc.multiply(deltas, pa.scalar(Decimal(10**deltas.type.scale)))
    if pa.types.is_date(deltas.type):
        deltas = deltas.cast(pa.int32())
    return deltas.cast(pa.int64()).to_pylist()
