"""The search for texts that are not UTF-8.

Arrow's format forbids such texts, but Arrow does not check for them, and Python cannot read them.
The check of a million texts takes 1 ms if all are ASCII, otherwise 8 ms.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.definition.schema import Array, Atomic, DataType, Map, Struct

# The types of offsets; views have none.
_OFFSET_TYPES: dict[pa.DataType, type[np.int32] | type[np.int64]] = {
    pa.string(): np.int32,
    pa.large_string(): np.int64,
}


def holds_text(kind: DataType) -> bool:
    """Return whether values of a type are or hold texts."""
    match kind:
        case Atomic(name=name):
            return name == "string"
        case Struct(fields=fields):
            return any(holds_text(field.type) for field in fields)
        case Array(element=element):
            return holds_text(element.type)
        case Map(key=key, value=value):
            return holds_text(key.type) or holds_text(value.type)


def rows_not_utf8(column: pa.ChunkedArray) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the rows with a text that is not UTF-8; None if there is none."""
    positions: list[int] = []
    start = 0
    for chunk in column.chunks:
        positions += _positions_not_utf8(chunk, start)
        start += len(chunk)
    if not positions:
        return None
    mask = np.zeros(len(column), np.bool_)
    mask[positions] = True
    return mask


def _positions_not_utf8(array: pa.Array, start: int) -> Iterator[int]:
    """Yield the positions of rows with a text that is not UTF-8.

    `start` is the position of the array's first row. Arrays with such a row are halved until it is
    alone.
    """
    if _is_utf8(array):
        return
    if len(array) == 1:
        yield start
        return
    half = len(array) // 2
    yield from _positions_not_utf8(array.slice(0, half), start)
    yield from _positions_not_utf8(array.slice(half), start + half)


def _is_utf8(array: pa.Array) -> bool:
    """Return whether all texts within an array are UTF-8."""
    try:
        for texts in _texts(array):
            if not _is_ascii(texts):
                texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_ascii(texts: pa.Array) -> bool:
    """Return whether all bytes of some texts are known to be ASCII."""
    width = _OFFSET_TYPES.get(texts.type)
    if width is None or len(texts) == 0:
        return False
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, width, len(texts) + 1, texts.offset * width().itemsize)
    first, last = int(offsets[0]), int(offsets[-1])
    if data is None or not 0 <= first < last <= data.size:
        return False
    octets = np.frombuffer(data, np.int8, last - first, first)
    return bool(octets.min() >= 0)  # as signed bytes, only ASCII is not negative


def _texts(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays of texts within an array; of a slice, only its own texts."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        yield array
    elif pa.types.is_dictionary(kind):
        used = array.indices.unique().drop_null()
        yield from _texts(array.dictionary.take(used))
    elif pa.types.is_struct(kind):
        for member in array.flatten():
            yield from _texts(member)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _texts(array.flatten())
    elif pa.types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        yield from _texts(array.keys.slice(first, last - first))
        yield from _texts(array.items.slice(first, last - first))
