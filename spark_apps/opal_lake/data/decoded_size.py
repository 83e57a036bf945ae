"""The size of a file's row groups in memory, by the headers of its pages, before decoding.

Footers and page headers are untrusted, but decoders allocate what they say. Pages of this format
are compressed by zstd at most, and dictionaries are the only encoding of texts in which a byte may
stand for many.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from opal_lake.data.thrift import decode_struct_at, struct_of, value_of

LEAST_LIMIT_BYTES = 256 << 20  # of a file in memory; writers cut row groups at half of it
MAX_INFLATED = 1024  # times the bytes of the file, where that is more
_CODECS = {"ZSTD", "UNCOMPRESSED"}
_ENCODINGS = {"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BINARY_PACKED"}
_PAGE_ENCODINGS = {0, 2, 3, 5, 8}  # the same encodings, by their numbers in page headers
_BITS = {"BOOLEAN": 1, "INT32": 32, "INT64": 64, "FLOAT": 32, "DOUBLE": 64, "BYTE_ARRAY": 32}
# Types whose physical form may have more bytes, as readers count them, than Arrow's.
_WIDER_THAN_ARROW = {
    pa.int8().id,
    pa.int16().id,
    pa.struct([]).id,
    pa.list_(pa.int8()).id,
    pa.map_(pa.int8(), pa.int8()).id,
}
_DECIMAL_BITS = {9: 32, 18: 64}  # by digits; longer decimals are counted by their pages alone
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_DATA_HEADER, _DICTIONARY_HEADER = 5, 7  # fields of a page header


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSize:
    """Bytes of a row group in memory: at least `least`, and at most `most`.

    The texts of dictionaries make the difference: up to `by_words` bytes a row.
    """

    least: int
    by_words: int
    rows: int

    @property
    def most(self) -> int:
        """The bytes if each text were as long as the whole dictionary."""
        return self.least + self.by_words * self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBound:
    """A bound of the memory that the rows of a file may take; tests scale it down.

    It is `least_bytes`, or `inflated` times the size of the file where that is more. Writers and
    readers use the same bound, so that every file that can be written can be read.
    """

    least_bytes: int = LEAST_LIMIT_BYTES
    inflated: int = MAX_INFLATED

    def limit_bytes(self, file_size: int) -> int:
        """Return how much memory the rows of a file that are read together may take."""
        return max(self.least_bytes, self.inflated * file_size)

    @property
    def average_bytes(self) -> int:
        """The size that writers cut row groups at, on average."""
        return self.least_bytes // 2

    @property
    def cut_bytes(self) -> int:
        """The greatest size of a row group of several rows, as `decoded_bytes` counts it.

        It is below the bound: readers count headers and dictionaries that a writer does not know.
        """
        return self.least_bytes // 8 * 7

    def file_bytes(self, decoded_bytes: int) -> int:
        """Return the least size of a file that may hold rows of `decoded_bytes` in memory.

        This is the inverse of `limit_bytes`.
        """
        if decoded_bytes <= self.least_bytes:
            return 0
        return -(-decoded_bytes // self.inflated)


BOUND = SizeBound()


def decoded_bytes(rows: pa.Table) -> int:
    """Return the bytes of rows as one row group: no less than readers or Arrow count.

    Rows are in physical form. Readers allocate every entry of a leaf, and Parquet has an entry
    where Arrow has no value: for a null or empty list, in each leaf below it. Parquet's numbers
    have 4 bytes at least.
    """
    total: int = rows.nbytes
    for column in rows.columns:
        if column.type.id in _WIDER_THAN_ARROW:
            bits = sum(_leaf_bits(chunk, _Level()) for chunk in column.chunks)
            total += max(0, -(-bits // 8) - column.nbytes)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """The position of an array within a column's lists and structs.

    `definition` and `repetition` are Parquet's levels above the array. `absent` counts the entries
    without a value in the array: each null or empty list above it is an entry in Parquet.
    """

    absent: int = 0
    definition: int = 0
    repetition: int = 0


def _leaf_bits(array: pa.Array, level: _Level) -> int:
    """Return the bits of all leaves within an array, with their levels."""
    kind = array.type
    if pa.types.is_struct(kind):
        below = replace(level, definition=level.definition + 1)
        return sum(_leaf_bits(array.field(index), below) for index in range(kind.num_fields))
    if pa.types.is_nested(kind):
        return _list_bits(array, level)
    entry_bits = _entry_bits(kind)
    value_bits: int = max(8 * array.nbytes, len(array) * entry_bits)
    level_bits = (level.definition + 1).bit_length() + level.repetition.bit_length()
    entries = len(array) + level.absent
    return value_bits + level.absent * entry_bits + entries * level_bits


def _list_bits(array: pa.Array, level: _Level) -> int:
    """Return the bits of the leaves within lists or maps, with their levels.

    An empty or null list is an entry of each leaf.
    """
    first = count = empty = 0
    if len(array):
        offsets = array.offsets.to_numpy()
        first = int(offsets[0])
        count = int(offsets[-1]) - first
        empty = int(np.count_nonzero(offsets[1:] == offsets[:-1]))
    below = _Level(
        absent=level.absent + empty,
        definition=level.definition + 2,
        repetition=level.repetition + 1,
    )
    members = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    return sum(_leaf_bits(member.slice(first, count), below) for member in members)


def _entry_bits(kind: pa.DataType) -> int:
    """Return the bits that readers count for an entry of a leaf of this type."""
    if pa.types.is_decimal(kind):
        for digits, bits in _DECIMAL_BITS.items():
            if kind.precision <= digits:
                return bits
        return 0
    if pa.types.is_boolean(kind):
        return _BITS["BOOLEAN"]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _BITS["BYTE_ARRAY"]
    return max(_BITS["INT32"], int(kind.bit_width))


def footer_bytes_of_groups(footer: pq.FileMetaData) -> list[int]:
    """Return the bytes that readers of a footer count for each of its row groups."""
    return [_group_bytes(footer.row_group(number)) for number in range(footer.num_row_groups)]


def _group_bytes(group: pq.RowGroupMetaData) -> int:
    return sum(_least_bytes(group.column(number)) for number in range(group.num_columns))


def _least_bytes(chunk: pq.ColumnChunkMetaData, plain: int | None = None) -> int:
    """Return the least bytes of a column in memory.

    `plain` are the inflated bytes of its pages, by default those that the footer states.
    """
    entry_bytes: int = chunk.num_values * _BITS.get(chunk.physical_type, 0) // 8
    page_bytes: int = chunk.total_uncompressed_size if plain is None else plain
    return max(entry_bytes, page_bytes)


def check_group(
    group: pq.RowGroupMetaData,
    names: Collection[str],
    data: pa.Buffer | None,
    file_size: int,
    bound: SizeBound = BOUND,
) -> GroupSize:
    """Return the size in memory of some columns of a row group.

    `data` are the bytes of the file; without them, sizes of pages are taken from the footer. Raises
    ValueError for a row group that no writer of this format makes.
    """
    least = by_words = 0
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema.partition(".")[0] not in names:
            continue
        size = _chunk_size(chunk, group.num_rows, data)
        least += size.least
        by_words += size.by_words
    limit = bound.limit_bytes(file_size)
    if least > limit:
        raise ValueError(
            f"a row group of {group.num_rows:,} rows takes {least:,} bytes in memory, "
            f"but in a file of {file_size:,} bytes it may take at most {limit:,}"
        )
    return GroupSize(least=least, by_words=by_words, rows=group.num_rows)


def _chunk_size(chunk: pq.ColumnChunkMetaData, rows: int, data: pa.Buffer | None) -> GroupSize:
    """Return the size in memory of one column of a row group."""
    name, values = chunk.path_in_schema, chunk.num_values
    if chunk.compression not in _CODECS or not _ENCODINGS.issuperset(chunk.encodings):
        encodings = ", ".join(chunk.encodings)
        raise ValueError(
            f"column {name} is stored in a way that no writer of this format uses: "
            f"compression {chunk.compression}, encodings {encodings}"
        )
    is_nested = "." in name
    if values < 0 or (values != rows and not is_nested):
        raise ValueError(f"column {name} has {values:,} values in a row group of {rows:,} rows")
    plain_bytes, dictionary_bytes = None, 0
    if data is not None:
        plain_bytes, dictionary_bytes = _pages_size(chunk, data)
    by_words = 0
    if chunk.physical_type == "BYTE_ARRAY":
        # Rounded up; only a nested column has several values in a row
        values_a_row = -(-values // max(1, rows))
        by_words = values_a_row * dictionary_bytes
    return GroupSize(least=_least_bytes(chunk, plain_bytes), by_words=by_words, rows=rows)


def _pages_size(chunk: pq.ColumnChunkMetaData, data: pa.Buffer) -> tuple[int, int]:
    """Return the inflated bytes of all pages of a column, and those of its dictionary."""
    name = chunk.path_in_schema
    values = total = words = 0
    for kind, plain, count in _pages(chunk, data):
        total += plain
        if kind == _DICTIONARY_PAGE:
            words = plain
        else:
            values += count
    if values != chunk.num_values:
        raise ValueError(
            f"column {name} has pages of {values:,} values, but its footer says "
            f"{chunk.num_values:,}"
        )
    return total, words


def _pages(chunk: pq.ColumnChunkMetaData, data: pa.Buffer) -> Iterator[tuple[int, int, int]]:
    """Yield the kind of each page, its inflated bytes, and the number of its values.

    Raises ValueError for a page header that no writer of this format makes.
    """
    at = chunk.data_page_offset
    if chunk.has_dictionary_page:
        at = min(at, chunk.dictionary_page_offset)
    end = at + chunk.total_compressed_size
    if not 0 <= at <= end <= data.size:
        raise ValueError(f"column {chunk.path_in_schema} lies outside of the file")
    octets = memoryview(data).cast("B")  # Arrow's bytes are signed
    while at < end:
        header, at = decode_struct_at(octets, at)
        kind, plain, stored = (value_of(header, number) for number in (1, 2, 3))
        if kind not in (_DATA_PAGE, _DICTIONARY_PAGE):
            raise ValueError(f"column {chunk.path_in_schema} has a page of type {kind}")
        field = _DATA_HEADER if kind == _DATA_PAGE else _DICTIONARY_HEADER
        values_header = struct_of(header, field)
        count, encoding = value_of(values_header, 1), value_of(values_header, 2)
        if min(plain, stored, count) < 0 or encoding not in _PAGE_ENCODINGS:
            raise ValueError(
                f"column {chunk.path_in_schema} has a page of {count:,} values "
                f"in {stored:,} bytes, {plain:,} inflated, in encoding {encoding}"
            )
        yield kind, plain, count
        at += stored
    if at != end:
        raise ValueError(f"column {chunk.path_in_schema} has a page that ends beyond its bytes")
