"""How a long list of a checkpoint is cut into parts and encoded: lines of JSON, as in a commit, under zstd. Which lists there are: `lists`.

A list is in parts, each of which says what came and what went since the one before, so that a checkpoint writes what is new and not the
whole list. Parts are merged by size: an item is written again about once each time that the list doubles.
"""

import base64
import struct
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from opal_lake import checked, layout
from opal_lake.data.segment import SideFile
from opal_lake.decoding import decoding
from opal_lake.layout import PathKind, own_path
from opal_lake.log.commit import canonical_json
from opal_lake.storage.protocol import Storage

INLINE_BYTES = (
    16 << 10
)  # parts below lie in the root itself: a small table's checkpoint is one file
MERGE_RATIO = 2  # a part has more than so many times the items of the next one
GONE = "gone"
_PART = ("a section", "run `opal check`")

Lines = dict[Hashable, bytes | None]  # None: the item is in the list no more
MOST_INFLATED = 1024  # times its size; lists of real tables reach 30, of segments 110, of a thousand constant columns 700
ALWAYS_INFLATED = MOST_LINE = 16 << 20  # bytes
_AT_ONCE = 1 << 20
_SKIPPABLE = 0x184D2A50


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRef:
    """Where a part lies, the version that it describes, and how many lines it has."""

    path: str
    size: int
    crc32: int
    version: int
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InlinePart:
    """A part that lies in the root."""

    data: bytes
    version: int


Part = SectionRef | InlinePart
Sections = Mapping[str, tuple[Part, ...]]


def encode_section(items: Iterable[Any], to_json: Callable[[Any], Any]) -> bytes:
    """One line an item."""
    return encode_lines(canonical_json(to_json(item)) for item in items)


def write_side(
    storage: Storage, number: int, attempt: int, items: Iterable[Any], to_json: Callable[[Any], Any]
) -> SideFile:
    """Store a list that is too long for its commit."""
    path, data = layout.side_path(number, attempt), encode_section(items, to_json)
    storage.put_if_absent(path, data)
    return SideFile(path=path, size=len(data), crc32=zlib.crc32(data))


def encode_lines(lines: Iterable[bytes]) -> bytes:
    plain, sink = b"".join(line + b"\n" for line in lines), pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(plain)
    data = bytes(sink.getvalue())
    return (
        data
        if len(plain) <= _most_plain(len(data))
        else data + _skipped(-(-len(plain) // MOST_INFLATED) - len(data))
    )


def _skipped(size: int) -> bytes:
    """A frame that zstd passes over, so that a list which compresses better than readers believe is believed."""
    return struct.pack("<II", _SKIPPABLE, size) + bytes(size)


def _most_plain(size: int) -> int:
    return max(ALWAYS_INFLATED, MOST_INFLATED * size)


def decode_section(data: bytes, path: str, from_json: Callable[[Any], Any]) -> list[Any]:
    with decoding(path, *_PART):
        return [from_json(item) for lines in _inflating(data) for item in _items(lines)]


def _inflating(data: bytes) -> Iterator[list[bytes]]:
    """Lines, some at a time: a list that is not what it says to be is not held whole."""
    stream, held, rest = pa.CompressedInputStream(pa.BufferReader(data), "zstd"), 0, b""
    while part := stream.read(_AT_ONCE):
        held += len(part)
        if held > _most_plain(len(data)):
            raise ValueError(
                f"its {len(data):,} bytes inflate to more than {_most_plain(len(data)):,}"
            )
        whole, end, rest = (rest + part).rpartition(b"\n")
        if len(rest) > MOST_LINE:
            raise ValueError(f"it has a line of more than {MOST_LINE:,} bytes")
        if end:
            yield whole.split(b"\n")
    if rest:
        raise ValueError("its last line is cut off")


def decode_items(lines: list[bytes], path: str, from_json: Callable[[Any], Any]) -> list[Any]:
    """Decode lines of a section, one item a line."""
    with decoding(path, *_PART):
        items = _items(lines)
        if len(items) != len(lines):
            raise ValueError(f"its {len(lines):,} lines hold {len(items):,} items")
        return [from_json(item) for item in items]


def decode_lines(data: bytes, path: str) -> list[bytes]:
    with decoding(path, *_PART):
        return _inflated(data)


def _inflated(data: bytes) -> list[bytes]:
    return [line for lines in _inflating(data) for line in lines]


def _items(lines: list[bytes]) -> list[Any]:
    return checked.listed(checked.parse_canonical(b"[" + b",".join(lines) + b"]"))


def encode_part(lines: Lines) -> bytes:
    return encode_lines(
        canonical_json({GONE: key}) if line is None else line for key, line in lines.items()
    )


def decode_part(data: bytes, path: str, key_of: Callable[[Any], Hashable]) -> Lines:
    """Lines as they are, by what they name."""
    with decoding(path, *_PART):
        lines = _inflated(data)
        pairs = zip(_items(lines), lines, strict=True)
        return dict(
            (_gone_key(item[GONE]), None) if is_gone(item) else (key_of(item), line)
            for item, line in pairs
        )


def _gone_key(key: Any) -> Hashable:
    """A key of several parts is a list in JSON."""
    return tuple(key) if isinstance(key, list) else key


def is_gone(item: Any) -> bool:
    return isinstance(item, dict) and GONE in item


def merged(older: Lines, newer: Lines) -> Lines:
    """Two neighbouring parts as one."""
    result = dict(older)
    for key, line in newer.items():
        add_line(result, key, line)
    return result


def add_line(lines: Lines, key: Hashable, line: bytes | None) -> None:
    """In place. What came and went since the part below is in neither."""
    came = lines.pop(key, None)
    if line is not None or came is None:
        lines[key] = line


def part_to_json(part: Part) -> list[Any]:
    if isinstance(part, InlinePart):
        return [base64.b64encode(part.data).decode(), part.version]
    return [part.path, part.size, part.crc32, part.version, part.items]


def part_from_json(data: Sequence[Any]) -> Part:
    if len(data) == 2:
        return InlinePart(
            data=base64.b64decode(checked.text(data[0]), validate=True),
            version=checked.count(data[1]),
        )
    path, size, crc32, version, items = data
    return SectionRef(
        path=own_path(PathKind.SECTION, path),
        size=checked.count(size),
        crc32=checked.crc(crc32),
        version=checked.count(version),
        items=checked.count(items),
    )


def sections_to_json(sections: Sections) -> dict[str, Any]:
    return {name: list(map(part_to_json, parts)) for name, parts in sections.items()}


def sections_from_json(data: Mapping[str, Any]) -> dict[str, tuple[Part, ...]]:
    return {name: tuple(map(part_from_json, checked.listed(parts))) for name, parts in data.items()}


def file_parts(sections: Sections) -> Iterable[SectionRef]:
    """The parts that lie in files of their own."""
    return (part for parts in sections.values() for part in parts if isinstance(part, SectionRef))
