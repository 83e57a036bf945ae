"""128 bits of SHA-256 over the canonical bytes of a key (FORMAT: key hash).

    key    = tags ":" field ... field   one tag and one field for each key column
    field  = length ":" bytes           string (tag s), binary (x); decimal length in bytes
           | text ","                   number (n), boolean (b), date (d), timestamp (t),
                                        timestamp_ntz (w)
    the last field drops its length or its comma

A number is plain decimal text without leading zeros, without zeros at the end of its fraction and
without exponent. Integers of every width and decimals of every scale share it, so that widening a
column keeps the hashes. Booleans are 0 and 1, dates days, timestamps microseconds since 1970-01-01.
Reading from the left gives the key back, hence no two keys share their bytes. It is text because
ANSI Spark makes no other bytes of a bigint natively.
"""

from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.definition.ordering import INTEGER_TYPES, encode_order, exact_unscaled, to_order
from opal_lake.definition.schema import (
    Atomic,
    arrow_type,
    atomic_type_name,
    decimal_parts,
    type_name,
)
from opal_lake.errors import InvalidInputError

HASH_BYTES = 16
_TAGS = {
    **dict.fromkeys(INTEGER_TYPES, "n"),
    "boolean": "b",
    "string": "s",
    "binary": "x",
    "date": "d",
    "timestamp": "t",
    "timestamp_ntz": "w",
}


def key_header(types: Sequence[Atomic]) -> str:
    """Return the beginning of keys of these types: a tag for each type, and a colon."""
    tags = "".join(map(_tag, types))
    return f"{tags}:"


def has_length(kind: Atomic) -> bool:
    """Return whether a length precedes fields of this type; others end with a comma."""
    return kind.name in ("string", "binary")


def _tag(kind: Atomic) -> str:
    if decimal_parts(kind.name):
        return "n"
    if kind.name not in _TAGS:
        known = ", ".join(map(atomic_type_name, _TAGS))
        raise InvalidInputError(
            f"type {type_name(kind)} cannot be a key; use DECIMAL or one of {known}"
        )
    return _TAGS[kind.name]


def canonical_bytes(
    columns: "Sequence[pa.Array | pa.ChunkedArray]", types: Sequence[Atomic]
) -> pa.LargeBinaryArray:
    """Return the canonical bytes of each key, which are hashed.

    Dates and timestamps may come as the integers that ORC files hold.
    """
    if not columns or len(columns) != len(types):
        raise InvalidInputError(
            f"a key of {len(types)} types got {len(columns)} columns; "
            "give at least one type, and one column for each"
        )
    parts: list[Any] = [_constant(key_header(types))]
    for position, (column, kind) in enumerate(zip(columns, types, strict=True), start=1):
        text = _text(_without_nulls(column, position), kind)
        parts += _field(text, kind, last=position == len(types))
    return pc.binary_join_element_wise(*parts, _constant(""))


def _constant(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), pa.large_binary())


def _without_nulls(column: "pa.Array | pa.ChunkedArray", position: int) -> pa.Array:
    if column.null_count:
        raise InvalidInputError(
            f"key column {position} is null in {column.null_count} of {len(column)} rows; "
            "reject these rows, because a key has no nulls"
        )
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _field(text: pa.Array, kind: Atomic, *, last: bool) -> list[Any]:
    """Return the pieces of a field, which are joined row by row.

    They are delimited so that different keys never have equal bytes.
    """
    if last:
        return [text]
    if not has_length(kind):
        return [text, _constant(",")]
    return [_digits(pc.binary_length(text)), _constant(":"), text]


def _text(column: pa.Array, kind: Atomic) -> pa.Array:
    if has_length(kind):
        return column.cast(pa.large_binary())
    if decimal_parts(kind.name):
        return _plain_decimals(column)
    if kind.name == "boolean":
        return _digits(column.cast(pa.int8()))
    words, _ = to_order(column, kind)
    return _digits(pa.array(words))


def _digits(integers: pa.Array) -> pa.Array:
    return integers.cast(pa.string()).cast(pa.large_binary())


def _plain_decimals(column: pa.Array) -> pa.Array:
    """Return decimals as plain text, without zeros at the end of the fraction.

    The decimal point is inserted here, because Arrow's own text may have an exponent.
    """
    scale = column.type.scale
    wide = column.cast(pa.decimal128(38, scale))
    if not len(wide):
        return pa.array([], pa.large_binary())
    # The same 128 bits with scale 0: the digits without a point
    buffers = [None, wide.buffers()[1]]
    whole_numbers = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(wide), buffers, offset=wide.offset
    )
    unscaled = whole_numbers.cast(pa.string())
    if not scale:
        return unscaled.cast(pa.large_binary())
    # At least one digit before the point
    unsigned = pc.utf8_ltrim(unscaled, "-")
    digits = pc.utf8_lpad(unsigned, scale + 1, "0")
    whole = pc.utf8_slice_codeunits(digits, 0, -scale)
    fraction = pc.utf8_slice_codeunits(digits, -scale)
    text = pc.binary_join_element_wise(whole, fraction, ".")
    without_zeros = pc.utf8_rtrim(text, "0")
    text = pc.utf8_rtrim(without_zeros, ".")
    sign = pc.if_else(pc.starts_with(unscaled, "-"), "-", "")
    return pc.binary_join_element_wise(sign, text, "").cast(pa.large_binary())


def hash_keys(
    columns: "Sequence[pa.Array | pa.ChunkedArray]", types: Sequence[Atomic]
) -> npt.NDArray[np.uint64]:
    """Return the hash of each key as a row of two words, high and low: shape (n, 2).

    The words are the first 16 bytes of the key's SHA-256, big-endian.
    """
    keys = canonical_bytes(columns, types).to_pylist()
    # A loop, because hashlib hashes one value a call
    digests = b"".join([sha256(key).digest() for key in keys])
    words = np.frombuffer(digests, ">u8").reshape(-1, 4)  # 32 bytes a digest
    return np.ascontiguousarray(words[:, :2], np.uint64)


def hash_bytes(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> pa.Array:
    """Return hashes as binary values of 16 bytes, as `hashes_from_bytes` reads them."""
    words = np.ascontiguousarray(np.stack([high, low], axis=1).astype(">u8"))
    hashes = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(high), [None, pa.py_buffer(words)]
    )
    return hashes.cast(pa.binary())


def hashes_from_bytes(hashes: "pa.Array | pa.ChunkedArray") -> npt.NDArray[np.uint64]:
    """Return the 16-byte hashes that Spark ships in the form of `hash_keys`."""
    if hashes.null_count:
        raise InvalidInputError(
            f"{hashes.null_count} of {len(hashes)} key hashes are null; "
            "reject these rows, because a key has no nulls"
        )
    chunks: Iterable[pa.Array] = [hashes]
    if isinstance(hashes, pa.ChunkedArray):
        chunks = hashes.chunks
    filled_chunks = [chunk for chunk in chunks if len(chunk)]
    packed = b"".join(map(_packed, filled_chunks))
    words = np.frombuffer(packed, ">u8").astype(np.uint64)
    return words.reshape(-1, 2)


def _packed(chunk: pa.Array) -> memoryview:
    """Return the bytes of a chunk's hashes, as a view of its buffer.

    Raises InvalidInputError unless every value has the length of a hash.
    """
    count = len(chunk)
    values = memoryview(chunk.buffers()[-1])
    if pa.types.is_fixed_size_binary(chunk.type) and chunk.type.byte_width == HASH_BYTES:
        start = chunk.offset * HASH_BYTES
        return values[start : start + count * HASH_BYTES]
    offset_type = np.int64 if pa.types.is_large_binary(chunk.type) else np.int32
    offsets = np.frombuffer(chunk.buffers()[1], offset_type)
    # The first byte of each value, and the end of the last one
    bounds = offsets[chunk.offset : chunk.offset + count + 1]
    if (np.diff(bounds) != HASH_BYTES).any():
        raise InvalidInputError(
            f"a key hash does not have {HASH_BYTES} bytes; pass the column that key_hash made"
        )
    start = int(bounds[0])
    return values[start : start + count * HASH_BYTES]


def given_keys(
    keys: Sequence[Sequence[Any]], types: Sequence[Atomic], names: Sequence[str] = ()
) -> list[pa.Array]:
    """Return the keys that a user gives, one array for each key column.

    Dates and timestamps may be ISO 8601 texts. The text of a timestamp has its zone.
    """
    for key in keys:
        if len(key) != len(types):
            raise InvalidInputError(
                f"the key has {len(types)} columns, {key!r} has {len(key)} values; "
                "give one value for each column, in the order of the columns"
            )
    columns: Iterable[Sequence[Any]] = [()] * len(types)  # no keys: empty columns
    if keys:
        columns = zip(*keys, strict=True)
    labels = [f"key column {name}" for name in names]
    if not names:
        labels = [f"key value {number}" for number in range(1, len(types) + 1)]
    arrays: list[pa.Array] = []
    for values, kind, label in zip(columns, types, labels, strict=True):
        arrays.append(given_values(values, kind, label))
    return arrays


def given_values(values: Sequence[Any], kind: Atomic, name: str) -> pa.Array:
    """Return values that a user gives for a column, none of them null.

    `name` names the column in errors. Integers, dates and timestamps are order words.
    """
    accepted = _ACCEPTED.get(kind.name)
    if accepted is not None:
        return _plain_key_column(values, kind, name, accepted)
    if decimal_parts(kind.name):
        decimals = [_decimal(value, kind, name) for value in values]
        return pa.array(decimals, arrow_type(kind))
    words = [encode_order(value, kind, name=name) for value in values]
    return pa.array(words, pa.int64())


def _plain_key_column(values: Sequence[Any], kind: Atomic, name: str, accepted: type) -> pa.Array:
    for value in values:
        if not isinstance(value, accepted):
            raise InvalidInputError(
                f"{name}: {value!r} is not a valid {type_name(kind)}; give a value of type "
                f"{accepted.__name__}"
            )
    try:
        return pa.array(values, arrow_type(kind))
    except UnicodeEncodeError as error:
        # A command line has unpaired surrogates for bytes of another encoding
        raise InvalidInputError(
            f"{name}: {error.object!r} is not valid UTF-8, so no row has this key; correct the key"
        ) from None


def _decimal(value: Any, kind: Atomic, name: str) -> Decimal:
    precision, scale = decimal_parts(kind.name) or (0, 0)
    unscaled = exact_unscaled(value, scale, name=name)
    if abs(unscaled) >= 10**precision:
        raise InvalidInputError(
            f"{name}: {value!r} is too large for {type_name(kind)}; correct the key"
        )
    return Decimal(unscaled).scaleb(-scale, Context(prec=precision))


_ACCEPTED: dict[str, type] = {"boolean": bool, "string": str, "binary": bytes}
