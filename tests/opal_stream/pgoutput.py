"""Changes of a PostgreSQL table by logical decoding, with pgoutput, protocol version 1."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, str | None]
UNCHANGED: Any = (
    object()
)  # a large value that an update did not touch, and that the row before does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of one row, as text; `lsn` is its position in the server's log."""

    operation: str  # I, U, D
    before: Row | None
    after: Row | None
    lsn: int
    commit_ms: int


@dataclass(slots=True, kw_only=True)
class Decoding:
    """A slot and its publication, read by SQL."""

    cursor: Any
    slot: str
    publication: str
    _columns: dict[int, Sequence[str]] = field(default_factory=dict)
    _commit_ms: int = 0

    def begin(self) -> int:
        """Make the slot; the place in the log from which it gives changes."""
        self.cursor.execute(
            "SELECT lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')", [self.slot]
        )
        return lsn_of(self.cursor.fetchone()[0])

    def changes(self) -> Iterator[Change]:
        """Return the changes committed since the last call, in the order of commits."""
        options = "'proto_version', '1', 'publication_names', %s"
        self.cursor.execute(
            f"SELECT lsn, data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, {options})",
            [self.slot, self.publication],
        )
        for lsn, data in self.cursor:
            message = memoryview(data)
            change = self._change(message.tobytes(), lsn_of(lsn))
            if change is not None:
                yield change

    def _change(self, data: bytes, lsn: int) -> Change | None:
        kind = data[:1]
        if kind == b"B":
            _, micros, _ = struct.unpack_from(">qqi", data, 1)
            self._commit_ms = micros // 1000 + 946_684_800_000  # they count from 2000 on
        elif kind == b"R":
            self._learn(data)
        elif kind in b"IUD":
            columns, before, after = self._columns[struct.unpack_from(">i", data, 1)[0]], None, None
            position, is_whole = 5, False
            while position < len(data):
                side = data[position : position + 1]
                row, position = _tuple(data, position + 1, columns)
                before, after = (before, row) if side == b"N" else (row, after)
                is_whole = (
                    is_whole or side == b"O"
                )  # with REPLICA IDENTITY FULL; else it has the key
            if after is not None and before is not None and is_whole:
                for name in [name for name, value in after.items() if value is UNCHANGED]:
                    after[name] = before[name]
            return Change(
                operation=kind.decode(),
                before=before,
                after=after,
                lsn=lsn,
                commit_ms=self._commit_ms,
            )
        return None

    def _learn(self, data: bytes) -> None:
        relation = struct.unpack_from(">i", data, 1)[0]
        _, position = _text(data, 5)  # the schema's name
        _, position = _text(data, position)
        count = struct.unpack_from(">h", data, position + 1)[0]
        position, names = position + 3, []
        for _ in range(count):
            name, position = _text(data, position + 1)
            names.append(name)
            position += 8
        self._columns[relation] = names


def lsn_of(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def _text(data: bytes, position: int) -> tuple[str, int]:
    end = data.index(b"\0", position)
    return data[position:end].decode(), end + 1


def _tuple(data: bytes, position: int, columns: Sequence[str]) -> tuple[dict[str, Any], int]:
    row: dict[str, Any] = {}
    position += 2
    for name in columns:
        kind = data[position : position + 1]
        position += 1
        if kind == b"t":
            end = position + 4 + struct.unpack_from(">i", data, position)[0]
            row[name], position = data[position + 4 : end].decode(), end
        else:
            row[name] = None if kind == b"n" else UNCHANGED
    return row, position
