"""Which Parquet encoding each column gets, and which ones are not compressed, judged from a sample of its values.

Wrong guesses cost bytes and time, never correctness. Compression makes most of them good: so only columns of numbers go without it, whose
values take no more than their width. Only encodings that Spark's vectorised reader knows: BYTE_STREAM_SPLIT fails there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BLOCKS, BLOCK_ROWS = 8, 1024  # consecutive rows, because deltas depend on the order
FEW_ROWS = 64  # of a whole file: nothing is saved then, and to look at the values takes longer than to write them
_CODEC = pa.Codec("zstd")
_LEAST_SAVING = 0.1  # of a column's bytes: readers pay more for a smaller one than it saves
_DELTA_WIDTHS = {1: 32, 2: 32, 4: 32, 8: 64}  # bytes in Arrow -> bits in Parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class Encodings:
    """Leaf columns by how they are stored; what is neither in a dictionary nor deltas is PLAIN. `dense` ones are not compressed.

    Row groups have no statistics of floats: those of a NaN or of -0.0 make Spark skip rows that its filter would keep.
    """

    dictionary: tuple[str, ...]
    delta: tuple[str, ...]
    statistics: tuple[str, ...]
    dense: tuple[str, ...]
    paths: tuple[str, ...]


def plan_encodings(table: pa.Table, *, may_be_dense: bool = False) -> Encodings:
    """Dictionary for repeated values, deltas for narrow steps, else plain; of few rows all plain."""
    sample = _sample(table)
    leaves = [
        leaf
        for column in sample.schema
        for leaf in _leaves(column.name, sample.column(column.name))
    ]
    chosen = (
        [(path, _encoding(values)) for path, values in leaves] if table.num_rows >= FEW_ROWS else []
    )
    return Encodings(
        dictionary=tuple(path for path, encoding in chosen if encoding == "dictionary"),
        delta=tuple(path for path, encoding in chosen if encoding == "delta"),
        statistics=tuple(path for path, values in leaves if not pa.types.is_floating(values.type)),
        paths=tuple(path for path, _ in leaves),
        dense=tuple(
            path
            for (path, encoding), (_, values) in zip(chosen, leaves, strict=False)
            if may_be_dense and _is_dense(values, encoding)
        ),
    )


def _sample(table: pa.Table) -> pa.Table:
    if table.num_rows <= BLOCKS * BLOCK_ROWS:
        return table.combine_chunks()
    step = (table.num_rows - BLOCK_ROWS) // (BLOCKS - 1)
    return pa.concat_tables(
        [table.slice(block * step, BLOCK_ROWS) for block in range(BLOCKS)]
    ).combine_chunks()


def _leaves(path: str, column: pa.ChunkedArray | pa.Array) -> Iterator[tuple[str, pa.Array]]:
    array = (
        pa.concat_arrays(column.chunks)
        if isinstance(column, pa.ChunkedArray) and column.num_chunks
        else column
    )
    if isinstance(array, pa.ChunkedArray):
        array = pa.nulls(0, column.type)
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
    values = values.drop_null()
    if pa.types.is_boolean(values.type):
        return "plain"
    narrow, rising = _steps(values)
    if narrow and rising:
        return "delta"
    if len(values.unique()) * 2 <= len(values):
        return "dictionary"
    return "delta" if narrow else "plain"


def _steps(values: pa.Array) -> tuple[bool, bool]:
    """Whether most steps from value to value need at most half of the bits, and whether they lead upwards and do not stand still."""
    kind = values.type
    if (
        not (pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind))
        or len(values) < 2
    ):
        return False, False
    bits = _DELTA_WIDTHS[kind.bit_width // 8]
    numbers = values.cast(
        pa.int32() if kind.bit_width == 32 else kind if pa.types.is_integer(kind) else pa.int64()
    ).to_numpy()
    steps = np.diff(numbers.astype(np.float64))
    most = np.quantile(np.abs(steps), 0.9)
    return bool(most < 2.0 ** (bits // 2)), bool(np.quantile(steps, 0.1) > 0)


def _is_dense(values: pa.Array, encoding: str) -> bool:
    """Whether compression saves next to nothing, as of random numbers, or of random places in a dictionary of numbers."""
    kind = values.type
    if encoding == "delta" or not pa.types.is_primitive(kind) or kind.bit_width not in (32, 64):
        return False
    values = values.drop_null()
    data = _places(values) if encoding == "dictionary" else _plain(values, kind.bit_width // 8)
    return len(data) > 0 and len(_CODEC.compress(data)) > (1 - _LEAST_SAVING) * len(data)


def _plain(values: pa.Array, width: int) -> bytes:
    return bytes(values.buffers()[1])[values.offset * width : (values.offset + len(values)) * width]


def _places(values: pa.Array) -> bytes:
    """In the dictionary, as they are packed."""
    encoded = values.dictionary_encode()
    bits = max(1, (len(encoded.dictionary) - 1).bit_length())
    packed: npt.NDArray[np.uint8] = np.packbits(
        encoded.indices.to_numpy()[:, None] >> np.arange(bits) & 1, bitorder="little"
    )
    return packed.tobytes()
