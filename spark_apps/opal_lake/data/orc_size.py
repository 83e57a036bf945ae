"""The size of an ORC file in memory, by its footers and lengths, before a value is decoded.

A decoder allocates as many bytes as the lengths of texts and lists add up to. It gives each row a
copy of its word of a dictionary, so that a few hundred bytes may become gigabytes. The size here is
never less than the bytes that a decoder allocates. The statistics of a footer are not trusted.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from opal_lake.data.orc_runs import Lengths, bound_of_lengths, runs_of
from opal_lake.data.thrift import decode_varint

MAX_FOOTER_BYTES = 64 << 20  # inflated, of a file or a stripe
MAX_BLOCK_BYTES = 256 << 10  # inflated, of a chunk of a stream
LEAST_STREAM_BYTES = 1 << 20  # inflated, that every stream may have, however small the file is

_TAIL_BYTES = 255  # the length of a postscript is one byte
_NONE, _ZSTD = 0, 5
_BYTES, _VARINT, _FIXED64, _FIXED32 = 2, 0, 1, 5  # wire types of protobuf
_FIXED = {*range(7), 9, 14, 15, 18}  # kinds of numbers, booleans and times
_TEXTS = {7, 8, 16, 17}
_LIST, _MAP, _STRUCT = 10, 11, 12
_ENTRY_BYTES = 8  # of a number, and of where a list begins
_TEXT_BYTES = 16  # of where a text begins, and of its length
_DECIMAL, _DECIMAL_BYTES = 14, 16
_DATA_STREAM, _LENGTH_STREAM = 1, 2
_DIRECT, _DICTIONARY = 2, 3
_INDEX_STREAMS = {6, 7, 8}

_Message = dict[int, list[Any]]
_Octets = bytes | memoryview
_Read = Callable[[int, int], memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """The footer of a file, and how its streams are stored."""

    compression: int
    block_bytes: int
    footer: _Message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    kind: int
    members: list[int]


@dataclass(slots=True, kw_only=True)
class _Stripe:
    """A stripe to measure: by each length if `is_exact`, or by runs of lengths."""

    read: _Read
    tail: _Tail
    columns: list[_Column]
    limit: int
    is_exact: bool
    streams: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    encodings: list[tuple[int, int]] = field(default_factory=list)

    def bytes_of(self, column: int, entries: int) -> int:
        """Return the bytes of a column and its members, for a number of entries."""
        kind, members = self.columns[column].kind, self.columns[column].members
        if kind in _FIXED:
            width = _DECIMAL_BYTES if kind == _DECIMAL else _ENTRY_BYTES
            return entries * width
        if kind in _TEXTS:
            return entries * _TEXT_BYTES + self._text_bytes(column, entries)
        if kind == _STRUCT:
            return sum(self.bytes_of(member, entries) for member in members)
        if kind not in (_LIST, _MAP):
            raise ValueError(
                f"column {column} is of kind {kind}, which no writer of this format stores"
            )
        self._expect_encoding(column, {_DIRECT})
        member_entries = self._lengths(column).total
        own_bytes = entries * _ENTRY_BYTES
        return own_bytes + sum(self.bytes_of(member, member_entries) for member in members)

    def _text_bytes(self, column: int, entries: int) -> int:
        """Return the bytes of the texts of a column, and of its dictionary."""
        encoding, words = self._expect_encoding(column, {_DIRECT, _DICTIONARY})
        lengths = self._lengths(column)
        if encoding == _DIRECT:
            return lengths.total
        dictionary_bytes = lengths.total + words * _ENTRY_BYTES
        # To read the entries takes long: only if the longest word for each would exceed the limit.
        if self.is_exact and entries * lengths.longest > self.limit:
            return dictionary_bytes + self._chosen_bytes(column, entries)
        return dictionary_bytes + entries * lengths.longest

    def _expect_encoding(self, column: int, known: Collection[int]) -> tuple[int, int]:
        """Return the encoding of a column and the words of its dictionary.

        Raises ValueError for an encoding that is not known.
        """
        encoding = self.encodings[column]
        if encoding[0] not in known:
            raise ValueError(
                f"column {column} has encoding {encoding[0]}, which no writer of this format uses"
            )
        return encoding

    def _lengths(self, column: int) -> Lengths:
        """Return the lengths of a column's texts or lists, as upper bounds unless exact."""
        data = self._stream(column, _LENGTH_STREAM)
        if not self.is_exact:
            return bound_of_lengths(data)
        total = longest = 0
        for values in runs_of(data):
            total += int(values.sum())
            longest = max(longest, int(values.max()))
        return Lengths(total=total, longest=longest)

    def _chosen_bytes(self, column: int, entries: int) -> int:
        """Return the bytes of the words that the entries of a dictionary column choose."""
        parts = [*runs_of(self._stream(column, _LENGTH_STREAM))]
        word_bytes = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        total = entries_so_far = 0
        for numbers in runs_of(self._stream(column, _DATA_STREAM)):
            entries_so_far += len(numbers)
            if entries_so_far > entries or int(numbers.max()) >= len(word_bytes):
                raise ValueError(f"column {column} names words that its dictionary does not have")
            total += int(word_bytes[numbers].sum())
        return total

    def _stream(self, column: int, kind: int) -> bytes:
        start, size = self.streams.get((column, kind), (0, 0))
        max_bytes = max(self.limit, LEAST_STREAM_BYTES)
        return _inflated(self.read(start, size), self.tail, max_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrcSize:
    """The rows of a file's stripes, and the bytes of its columns in memory."""

    rows: int
    decoded_bytes: int


def orc_size(source: pa.NativeFile, names: Collection[str] | None, limit: int) -> OrcSize:
    """Return the size of some columns (default: all) of an ORC file.

    A size above the limit is exact. A size up to the limit may be more than the true one. Raises
    ValueError for a file that no writer of this format makes.
    """
    size = source.size()

    def read(start: int, count: int) -> memoryview:
        if not 0 <= start <= start + count <= size:
            raise ValueError(f"bytes {start:,} to {start + count:,} lie outside of the file")
        source.seek(start)
        return memoryview(source.read_buffer(count)).cast("B")

    tail = _tail(read, size)
    columns = [_column(data) for data in tail.footer.get(4, [])]
    chosen = _chosen(columns, tail.footer, names)
    stripe_messages = [_message(data) for data in tail.footer.get(3, [])]
    rows = sum(_number(message, 5) for message in stripe_messages)
    footer_rows = _number(tail.footer, 6)
    if rows != footer_rows:
        raise ValueError(f"its footer says {footer_rows:,} rows, but its stripes say {rows:,}")
    total = 0
    # The exact size takes much longer, and most files are far below the limit.
    for is_exact in (False, True):
        total = 0
        for message in stripe_messages:
            stripe = _Stripe(read=read, tail=tail, columns=columns, limit=limit, is_exact=is_exact)
            _open_stripe(stripe, message)
            entries = _number(message, 5)
            total += sum(stripe.bytes_of(column, entries) for column in chosen)
        if total <= limit:
            break
    return OrcSize(rows=rows, decoded_bytes=total)


def _tail(read: _Read, size: int) -> _Tail:
    """Read the footer of a file of `size` bytes.

    The file ends with the footer, the postscript, and the length of the postscript in one byte.
    """
    last_bytes = read(max(0, size - 1 - _TAIL_BYTES), min(size, 1 + _TAIL_BYTES))
    postscript_bytes = last_bytes[-1]
    end = len(last_bytes) - 1
    postscript = _message(last_bytes[end - postscript_bytes : end])
    compression, block_bytes = _number(postscript, 2), _number(postscript, 3)
    if compression not in (_NONE, _ZSTD) or block_bytes > MAX_BLOCK_BYTES:
        raise ValueError(
            "its compression is not one of this format: "
            f"kind {compression}, in blocks of {block_bytes:,} bytes"
        )
    footer_bytes = _number(postscript, 1)
    stored = read(size - 1 - postscript_bytes - footer_bytes, footer_bytes)
    tail = _Tail(compression=compression, block_bytes=block_bytes, footer={})
    footer = _message(_inflated(stored, tail, MAX_FOOTER_BYTES))
    return _Tail(compression=compression, block_bytes=block_bytes, footer=footer)


def _column(data: _Octets) -> _Column:
    """Decode the kind of a column, and the numbers of the columns within it."""
    message = _message(data)
    members: list[int] = []
    for value in message.get(2, []):
        # Protobuf has two forms of a list of numbers.
        if isinstance(value, int):
            members.append(value)
        else:
            members += _varints(value)
    return _Column(kind=_number(message, 1), members=members)


def _chosen(columns: list[_Column], footer: _Message, names: Collection[str] | None) -> list[int]:
    """Return the numbers of the top-level columns with these names (default: all).

    Raises ValueError if the types are not a tree: a walk of its members might not end.
    """
    all_members: list[int] = []
    for number, column in enumerate(columns):
        if any(member <= number for member in column.members):
            raise ValueError("its types are not a tree")
        all_members += column.members
    if sorted(all_members) != list(range(1, len(columns))):
        raise ValueError("its types are not a tree")
    root = _message(footer[4][0])
    column_names = [bytes(name).decode() for name in root.get(3, [])]
    pairs = zip(column_names, columns[0].members, strict=True)
    return [column for name, column in pairs if names is None or name in names]


def _open_stripe(stripe: _Stripe, message: _Message) -> None:
    """Read the streams and encodings of a stripe into it, from its footer.

    `message` says where the stripe lies.
    """
    at = _number(message, 1)
    index_bytes, data_bytes = _number(message, 2), _number(message, 3)
    stored = stripe.read(at + index_bytes + data_bytes, _number(message, 4))
    footer = _message(_inflated(stored, stripe.tail, MAX_FOOTER_BYTES))
    for data in footer.get(1, []):
        stream = _message(data)
        column, kind = _number(stream, 2), _number(stream, 1)
        if (column, kind) in stripe.streams and kind not in _INDEX_STREAMS:
            raise ValueError(f"column {column} has two streams of kind {kind}")
        size = _number(stream, 3)
        stripe.streams[column, kind] = (at, size)
        at += size
    for data in footer.get(2, []):
        encoding = _message(data)
        stripe.encodings.append((_number(encoding, 1), _number(encoding, 2)))
    if len(stripe.encodings) != len(stripe.columns):
        raise ValueError(
            f"a stripe has {len(stripe.encodings)} columns, the file has {len(stripe.columns)}"
        )


def _inflated(stored: memoryview, tail: _Tail, limit: int) -> bytes:
    """Return the plain bytes of a stream; raise ValueError for more than the limit."""
    if tail.compression == _NONE:
        return bytes(stored)
    parts: list[_Octets] = []
    at = total = 0
    while at < len(stored):
        head = int.from_bytes(stored[at : at + 3], "little")
        start, end = at + 3, at + 3 + (head >> 1)
        if end > len(stored):
            raise ValueError("a compressed chunk ends beyond its stream")
        part: _Octets = stored[start:end]
        is_compressed = not head & 1
        if is_compressed:
            stream = pa.CompressedInputStream(pa.BufferReader(part), "zstd")
            # A byte more than allowed, and no more: the chunk may inflate to gigabytes.
            part = stream.read(tail.block_bytes + 1)
        total += len(part)
        if len(part) > tail.block_bytes or total > limit:
            raise ValueError(
                f"a stream inflates to more than {limit:,} bytes, or a block of it to more than "
                f"{tail.block_bytes:,}"
            )
        parts.append(part)
        at = end
    return b"".join(parts)


def _message(data: _Octets) -> _Message:
    """Return the fields of a protobuf message by their numbers."""
    fields: _Message = {}
    at = 0
    while at < len(data):
        key, at = decode_varint(data, at)
        wire_type = key & 7
        value: Any = None
        if wire_type == _VARINT:
            value, at = decode_varint(data, at)
        elif wire_type == _BYTES:
            size, at = decode_varint(data, at)
            value = data[at : at + size]
            at += size
        elif wire_type == _FIXED64:
            at += 8
        elif wire_type == _FIXED32:
            at += 4
        else:
            raise ValueError(f"a footer has a field of wire type {wire_type}")
        fields.setdefault(key >> 3, []).append(value)
    if at != len(data):
        raise ValueError("a footer ends within a field")
    return fields


def _number(message: _Message, number: int) -> int:
    """Return an integer field, 0 if it is missing.

    The last one counts if the message has several, as in protobuf.
    """
    value = message.get(number, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {number} of a footer is not a number")
    return value


def _varints(data: _Octets) -> list[int]:
    values: list[int] = []
    at = 0
    while at < len(data):
        value, at = decode_varint(data, at)
        values.append(value)
    return values
