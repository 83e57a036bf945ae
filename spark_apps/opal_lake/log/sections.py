"""Sections: the parts of a checkpoint's long lists, encoded as JSON lines under zstd (FORMAT, §6).

`lists` defines the lists. Each part of a list holds the changes since the part before it, so that a
checkpoint writes only the new changes instead of the whole list. Parts are merged by size: an item
is written again about once each time that the list doubles.
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

MERGE_RATIO = 2  # a part is merged if it has at most so many times the items of the next one
GONE = "gone"
# For `decoding`: the document's noun in errors, and their next step
_PART = ("a section", "run `opal check`, which names the damaged file")

Lines = dict[Hashable, bytes | None]  # by key; None marks an item that is gone
# A list may decompress to so many times its size. Lists of real tables reach a factor of 30, lists
# of segments 110, and the files of a table with a thousand constant columns 700.
MAX_INFLATED = 1024
MAX_LINE = 16 << 20  # bytes
ALWAYS_INFLATED = 16 << 20  # bytes to which every list may decompress, however small it is
_READ_BYTES = 1 << 20
_SKIPPABLE_FRAME = 0x184D2A50  # the magic number of a zstd frame that readers skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRef:
    """A part in a file of its own, with its version and its number of lines."""

    path: str
    size: int
    crc32: int
    version: int
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InlinePart:
    """A part within the root."""

    data: bytes
    version: int


Part = SectionRef | InlinePart
Sections = Mapping[str, tuple[Part, ...]]


def encode_section(items: Iterable[Any], to_json: Callable[[Any], Any]) -> bytes:
    """Encode a list with one line for each item."""
    return encode_lines(canonical_json(to_json(item)) for item in items)


def write_side(
    storage: Storage, number: int, attempt: int, items: Iterable[Any], to_json: Callable[[Any], Any]
) -> SideFile:
    """Store a list that is too long for its commit in a side file."""
    path = layout.side_path(number, attempt)
    data = encode_section(items, to_json)
    storage.put_if_absent(path, data)
    return SideFile(path=path, size=len(data), crc32=zlib.crc32(data))


def encode_lines(lines: Iterable[bytes]) -> bytes:
    """Compress lines, each with a line feed, in a form that `decode_lines` accepts."""
    plain = b"".join(line + b"\n" for line in lines)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(plain)
    data = bytes(sink.getvalue())
    if len(plain) <= _max_inflated(len(data)):
        return data
    # Readers refuse a list that compresses so well: padding brings it to the least accepted size
    accepted_size = -(-len(plain) // MAX_INFLATED)  # rounded up
    return data + _skipped_frame(accepted_size - len(data))


def _skipped_frame(size: int) -> bytes:
    """Return a zstd frame with `size` bytes of content that decoders ignore."""
    return struct.pack("<II", _SKIPPABLE_FRAME, size) + bytes(size)


def _max_inflated(size: int) -> int:
    """Return the bytes to which a list of `size` compressed bytes may decompress."""
    return max(ALWAYS_INFLATED, MAX_INFLATED * size)


def decode_section(data: bytes, path: str, from_json: Callable[[Any], Any]) -> list[Any]:
    """Decode a list with one item for each line."""
    with decoding(path, *_PART):
        items: list[Any] = []
        for lines in _inflating(data):
            items += [from_json(item) for item in _items(lines)]
        return items


def _inflating(data: bytes) -> Iterator[list[bytes]]:
    """Decompress lines, and yield lists of some lines each.

    Raises ValueError before a damaged or hostile list fills the memory.
    """
    stream = pa.CompressedInputStream(pa.BufferReader(data), "zstd")
    max_inflated = _max_inflated(len(data))
    inflated = 0
    unfinished_line = b""
    while part := stream.read(_READ_BYTES):
        inflated += len(part)
        if inflated > max_inflated:
            raise ValueError(
                f"its {len(data):,} bytes decompress to more than the allowed {max_inflated:,}"
            )
        lines, line_feed, unfinished_line = (unfinished_line + part).rpartition(b"\n")
        if len(unfinished_line) > MAX_LINE:
            raise ValueError(f"it has a line of more than {MAX_LINE:,} bytes")
        if line_feed:
            yield lines.split(b"\n")
    if unfinished_line:
        raise ValueError("its last line is cut off")


def decode_items(lines: list[bytes], path: str, from_json: Callable[[Any], Any]) -> list[Any]:
    """Decode lines of a section, one item a line."""
    with decoding(path, *_PART):
        items = _items(lines)
        if len(items) != len(lines):
            raise ValueError(f"its {len(lines):,} lines hold {len(items):,} items")
        return [from_json(item) for item in items]


def decode_lines(data: bytes, path: str) -> list[bytes]:
    """Decompress lines, and return them without their line feeds."""
    with decoding(path, *_PART):
        return _inflated(data)


def _inflated(data: bytes) -> list[bytes]:
    all_lines: list[bytes] = []
    for lines in _inflating(data):
        all_lines += lines
    return all_lines


def _items(lines: list[bytes]) -> list[Any]:
    """Parse lines, each of which is a JSON document."""
    # One array is parsed much faster than its lines one by one
    return checked.listed(checked.parse_canonical(b"[" + b",".join(lines) + b"]"))


def encode_part(lines: Lines) -> bytes:
    """Encode a part; a line of its own marks each item that is gone."""
    encoded: list[bytes] = []
    for key, line in lines.items():
        if line is None:
            encoded.append(canonical_json({GONE: key}))
        else:
            encoded.append(line)
    return encode_lines(encoded)


def decode_part(data: bytes, path: str, key_of: Callable[[Any], Hashable]) -> Lines:
    """Return the lines of a part by key, without decoding the items themselves."""
    with decoding(path, *_PART):
        lines = _inflated(data)
        line_by_key: Lines = {}
        for item, line in zip(_items(lines), lines, strict=True):
            if is_gone(item):
                line_by_key[_gone_key(item[GONE])] = None
            else:
                line_by_key[key_of(item)] = line
        return line_by_key


def _gone_key(key: Any) -> Hashable:
    """Return the key of an item that is gone. JSON turned a tuple into a list."""
    return tuple(key) if isinstance(key, list) else key


def is_gone(item: Any) -> bool:
    return isinstance(item, dict) and GONE in item


def merged(older: Lines, newer: Lines) -> Lines:
    """Merge two neighbouring parts."""
    result = dict(older)
    for key, line in newer.items():
        add_line(result, key, line)
    return result


def add_line(lines: Lines, key: Hashable, line: bytes | None) -> None:
    """Add a line in place. An item that came and went since the last part has none."""
    earlier_line = lines.pop(key, None)
    came_and_went = line is None and earlier_line is not None
    if not came_and_went:
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
    sections: dict[str, tuple[Part, ...]] = {}
    for name, parts in data.items():
        sections[name] = tuple(map(part_from_json, checked.listed(parts)))
    return sections


def file_parts(sections: Sections) -> Iterable[SectionRef]:
    """Yield the parts in files of their own."""
    for parts in sections.values():
        for part in parts:
            if isinstance(part, SectionRef):
                yield part
