"""128 bits of SHA-256 over the canonical bytes of a key (FORMAT: key hash).

    key    = tags ":" field ... field        one tag and one field a key column
    field  = length ":" bytes                string (tag s), binary (x); length in bytes, in decimal digits
           | text ","                        number (n), boolean (b), date (d), timestamp (t), timestamp_ntz (w)
    the last field drops its length or its comma

A number is plain decimal text without leading zeros, without zeros at the end of its fraction and without exponent: integers of every width
and decimals of every scale share it, so that widening a column keeps the hashes. Booleans are 0 and 1, dates days, timestamps microseconds
since 1970-01-01. Reading from the left gives the key back, hence no two keys share their bytes. It is text because ANSI Spark makes
no other bytes of a bigint natively.
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
    """The tags that begin every key of these types."""
    return "".join(map(_tag, types)) + ":"


def has_length(kind: Atomic) -> bool:
    """Whether a field of this type has a length before it; the others have a comma behind."""
    return kind.name in ("string", "binary")


def _tag(kind: Atomic) -> str:
    if decimal_parts(kind.name):
        return "n"
    if kind.name not in _TAGS:
        raise InvalidInputError(
            f"type {type_name(kind)} cannot be a key; "
            f"use DECIMAL or one of {', '.join(map(atomic_type_name, _TAGS))}"
        )
    return _TAGS[kind.name]


def canonical_bytes(
    columns: "Sequence[pa.Array | pa.ChunkedArray]", types: Sequence[Atomic]
) -> pa.LargeBinaryArray:
    """What is hashed, one value a row. Dates and timestamps may come as the integers that ORC files hold."""
    if not columns or len(columns) != len(types):
        raise InvalidInputError(
            f"a key of {len(types)} types got {len(columns)} columns; give one column a type, and at least one"
        )
    parts: list[Any] = [_constant(key_header(types))]
    for position, (column, kind) in enumerate(zip(columns, types, strict=True), start=1):
        parts += _field(
            _text(_without_nulls(column, position), kind), kind, last=position == len(types)
        )
    return pc.binary_join_element_wise(*parts, _constant(""))


def _constant(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), pa.large_binary())


def _without_nulls(column: "pa.Array | pa.ChunkedArray", position: int) -> pa.Array:
    if column.null_count:
        raise InvalidInputError(
            f"key column {position} is null in {column.null_count} of {len(column)} rows; a key has no nulls: reject them"
        )
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _field(text: pa.Array, kind: Atomic, *, last: bool) -> list[Any]:
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
    return _digits(pa.array(to_order(column, kind)[0]))


def _digits(integers: pa.Array) -> pa.Array:
    return integers.cast(pa.string()).cast(pa.large_binary())


def _plain_decimals(column: pa.Array) -> pa.Array:
    """Put the point in by hand: Arrow's text turns to exponents, and its scale is not ours to keep."""
    wide, scale = column.cast(pa.decimal128(38, column.type.scale)), column.type.scale
    if not len(wide):
        return pa.array([], pa.large_binary())
    unscaled = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(wide), [None, wide.buffers()[1]], offset=wide.offset
    ).cast(pa.string())
    if not scale:
        return unscaled.cast(pa.large_binary())
    digits = pc.utf8_lpad(pc.utf8_ltrim(unscaled, "-"), scale + 1, "0")
    plain = pc.binary_join_element_wise(
        pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale), "."
    )
    sign = pc.if_else(pc.starts_with(unscaled, "-"), "-", "")
    return pc.binary_join_element_wise(
        sign, pc.utf8_rtrim(pc.utf8_rtrim(plain, "0"), "."), ""
    ).cast(pa.large_binary())


def hash_keys(
    columns: "Sequence[pa.Array | pa.ChunkedArray]", types: Sequence[Atomic]
) -> npt.NDArray[np.uint64]:
    """One row a key: (high, low), the big-endian words of the first 16 bytes of its SHA-256. Shape (n, 2)."""
    digests = b"".join(
        [sha256(key).digest() for key in canonical_bytes(columns, types).to_pylist()]
    )
    return np.ascontiguousarray(np.frombuffer(digests, ">u8").reshape(-1, 4)[:, :2], np.uint64)


def hashes_from_bytes(hashes: "pa.Array | pa.ChunkedArray") -> npt.NDArray[np.uint64]:
    """What Spark ships, 16 bytes a hash, as `hash_keys` gives it: shape (n, 2)."""
    if hashes.null_count:
        raise InvalidInputError(
            f"{hashes.null_count} of {len(hashes)} key hashes are null; a key has no nulls: reject the rows"
        )
    chunks: Iterable[pa.Array] = hashes.chunks if isinstance(hashes, pa.ChunkedArray) else [hashes]
    packed = b"".join(_packed(chunk) for chunk in chunks if len(chunk))
    return np.frombuffer(packed, ">u8").astype(np.uint64).reshape(-1, 2)


def _packed(chunk: pa.Array) -> memoryview:
    if pa.types.is_fixed_size_binary(chunk.type) and chunk.type.byte_width == HASH_BYTES:
        start = chunk.offset * HASH_BYTES
    else:
        width = np.int64 if pa.types.is_large_binary(chunk.type) else np.int32
        bounds = np.frombuffer(chunk.buffers()[1], width)[
            chunk.offset : chunk.offset + len(chunk) + 1
        ]
        if (np.diff(bounds) != HASH_BYTES).any():
            raise InvalidInputError(
                f"a key hash has other than {HASH_BYTES} bytes; pass the column that key_hash made"
            )
        start = int(bounds[0])
    return memoryview(chunk.buffers()[-1])[start : start + len(chunk) * HASH_BYTES]


def given_keys(
    keys: Sequence[Sequence[Any]], types: Sequence[Atomic], names: Sequence[str] = ()
) -> list[pa.Array]:
    """The columns of keys as a user gives them: dates and timestamps also as ISO text, timestamps with their zone."""
    if wrong := next((key for key in keys if len(key) != len(types)), None):
        raise InvalidInputError(
            f"the key has {len(types)} columns, {wrong!r} has {len(wrong)} values; give one each, in their order"
        )
    values = zip(*keys, strict=True) if keys else [()] * len(types)
    labels = [f"key column {name}" for name in names] or [
        f"key value {number + 1}" for number in range(len(types))
    ]
    return [_key_column(*column) for column in zip(values, types, labels, strict=True)]


def _key_column(values: Sequence[Any], kind: Atomic, name: str) -> pa.Array:
    accept = _ACCEPTED.get(kind.name)
    if accept and (wrong := [value for value in values if not isinstance(value, accept)]):
        raise InvalidInputError(
            f"{name}: {wrong[0]!r} is not a value of it; a {type_name(kind)} column takes "
            f"{accept.__name__}"
        )
    if accept:
        try:
            return pa.array(values, arrow_type(kind))
        except (
            UnicodeEncodeError
        ) as error:  # the surrogates that stand in a command line for bytes of another encoding
            raise InvalidInputError(
                f"{name}: {error.object!r} is no text of UTF-8, so no row has this key"
            ) from None
    if not decimal_parts(kind.name):
        return pa.array([encode_order(value, kind, name=name) for value in values], pa.int64())
    return pa.array([_one_decimal(value, kind, name) for value in values], arrow_type(kind))


def _one_decimal(value: Any, kind: Atomic, name: str) -> Decimal:
    precision, scale = decimal_parts(kind.name) or (0, 0)
    unscaled = exact_unscaled(value, scale, name=name)
    if abs(unscaled) >= 10**precision:
        raise InvalidInputError(
            f"{name}: {value!r} is too large for {type_name(kind)}; check the key"
        )
    return Decimal(unscaled).scaleb(-scale, Context(prec=precision))


_ACCEPTED: dict[str, type] = {"boolean": bool, "string": str, "binary": bytes}
