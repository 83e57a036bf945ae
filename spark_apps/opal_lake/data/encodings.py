"""The choice of Parquet encodings and compression of columns, from a sample of their values.

A wrong choice costs bytes and time, never correctness. Compression makes up for most wrong choices,
so only columns of numbers are left uncompressed: a value takes at most its width. Spark's
vectorised reader must know all encodings: it fails with BYTE_STREAM_SPLIT.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Of a sample. A block has consecutive rows, because deltas depend on their order.
BLOCKS, BLOCK_ROWS = 8, 1024
# Rows of a file. With fewer, encodings save nothing, and their choice takes longer than the write.
FEW_ROWS = 64
_CODEC = pa.Codec("zstd")
_LEAST_SAVING = 0.1  # of a column's bytes: a smaller one costs readers more than it saves
_DELTA_WIDTHS = {1: 32, 2: 32, 4: 32, 8: 64}  # bytes in Arrow -> bits in Parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class Encodings:
    """The paths of leaf columns, by how they are stored.

    A column that is neither in `dictionary` nor in `delta` is PLAIN. Columns in `dense` are not
    compressed. Columns of floats are not in `statistics`: because of statistics with a NaN or -0.0,
    Spark skips rows that its filter would keep.
    """

    dictionary: tuple[str, ...]
    delta: tuple[str, ...]
    statistics: tuple[str, ...]
    dense: tuple[str, ...]
    paths: tuple[str, ...]


def plan_encodings(table: pa.Table, *, may_be_dense: bool = False) -> Encodings:
    """Choose the encoding of each leaf column.

    Columns of repeated values get a dictionary, and columns of narrow steps get deltas. All other
    columns are plain, and so are all columns of few rows.
    """
    sample = _sample(table)
    leaves: list[tuple[str, pa.Array]] = []
    for column in sample.schema:
        leaves += _leaves(column.name, sample.column(column.name))
    by_encoding: dict[str, list[str]] = {"plain": [], "dictionary": [], "delta": []}
    dense: list[str] = []
    if table.num_rows >= FEW_ROWS:
        for path, values in leaves:
            encoding = _encoding(values)
            by_encoding[encoding].append(path)
            if may_be_dense and _is_dense(values, encoding):
                dense.append(path)
    return Encodings(
        dictionary=tuple(by_encoding["dictionary"]),
        delta=tuple(by_encoding["delta"]),
        statistics=tuple(path for path, values in leaves if not pa.types.is_floating(values.type)),
        paths=tuple(path for path, _ in leaves),
        dense=tuple(dense),
    )


def _sample(table: pa.Table) -> pa.Table:
    """Return blocks of rows that are spread evenly over the table, or all rows if few."""
    if table.num_rows <= BLOCKS * BLOCK_ROWS:
        return table.combine_chunks()
    step = (table.num_rows - BLOCK_ROWS) // (BLOCKS - 1)
    blocks = [table.slice(block * step, BLOCK_ROWS) for block in range(BLOCKS)]
    return pa.concat_tables(blocks).combine_chunks()


def _leaves(path: str, column: pa.ChunkedArray | pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the path in Parquet and the values of each leaf of a column."""
    array = column
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks
        array = pa.concat_arrays(chunks) if chunks else pa.nulls(0, column.type)
    if pa.types.is_struct(array.type):
        for index, member in enumerate(array.type):
            yield from _leaves(f"{path}.{member.name}", array.field(index))
    elif pa.types.is_map(array.type):
        yield from _leaves(f"{path}.key_value.key", array.keys)
        yield from _leaves(f"{path}.key_value.value", array.items)
    elif pa.types.is_list(array.type):
        yield from _leaves(f"{path}.list.element", array.values)
    else:
        yield path, array


def _encoding(values: pa.Array) -> str:
    """Return "plain", "dictionary" or "delta"."""
    values = values.drop_null()
    if pa.types.is_boolean(values.type):
        return "plain"
    is_narrow, is_rising = _steps(values)
    if is_narrow and is_rising:
        return "delta"
    if len(values.unique()) * 2 <= len(values):
        return "dictionary"
    return "delta" if is_narrow else "plain"


def _steps(values: pa.Array) -> tuple[bool, bool]:
    """Return whether most steps of values are narrow, and whether most are upwards.

    A step is the difference of two neighbours. A narrow one needs at most half of the bits of a
    value. A step of zero is not upwards.
    """
    kind = values.type
    is_integer = pa.types.is_integer(kind)
    has_steps = is_integer or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    if not has_steps or len(values) < 2:
        return False, False
    bits = _DELTA_WIDTHS[kind.bit_width // 8]
    number_type = kind if is_integer else pa.int64()
    if kind.bit_width == 32:
        number_type = pa.int32()
    numbers = values.cast(number_type).to_numpy()
    steps = np.diff(numbers.astype(np.float64))
    width_of_most = np.quantile(np.abs(steps), 0.9)
    is_narrow = width_of_most < 2.0 ** (bits // 2)
    is_rising = np.quantile(steps, 0.1) > 0
    return bool(is_narrow), bool(is_rising)


def _is_dense(values: pa.Array, encoding: str) -> bool:
    """Return whether compression saves next to nothing.

    This is true of random numbers, and of random positions in a dictionary of numbers.
    """
    kind = values.type
    if encoding == "delta" or not pa.types.is_primitive(kind) or kind.bit_width not in (32, 64):
        return False
    values = values.drop_null()
    data = _packed_indices(values) if encoding == "dictionary" else _plain(values)
    if not data:
        return False
    return len(_CODEC.compress(data)) > (1 - _LEAST_SAVING) * len(data)


def _plain(values: pa.Array) -> bytes:
    """Return the bytes of numbers without nulls."""
    width = values.type.bit_width // 8
    start = values.offset * width
    end = start + len(values) * width
    _, data = values.buffers()
    return bytes(data)[start:end]


def _packed_indices(values: pa.Array) -> bytes:
    """Return the indices of values in their dictionary, in as few bits as possible."""
    encoded = values.dictionary_encode()
    bits = max(1, (len(encoded.dictionary) - 1).bit_length())
    indices = encoded.indices.to_numpy()
    # A row for each index, with its bits from the lowest to the highest
    index_bits = indices[:, None] >> np.arange(bits) & 1
    packed: npt.NDArray[np.uint8] = np.packbits(index_bits, bitorder="little")
    return packed.tobytes()
