"""The key hash as native Spark expressions, without a UDF.

The expressions give the same bytes as `opal_lake.definition.key_hash`, in every ANSI mode and
session time zone. The 16 bytes are one binary column: two bigints would cost Spark two calls of
`conv` for each row.
"""

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from opal_lake.definition.key_hash import has_length, key_header
from opal_lake.definition.schema import Atomic, decimal_parts
from opal_lake.errors import InvalidInputError

MAX_SLOTS = 1 << 16
# Up to so many slots a slot is found by comparing bytes; beyond that making a number is cheaper
COMPARED_SLOTS = 64


def key_hash(columns: Sequence[str], types: Sequence[Atomic], file_format: str) -> Column:
    """Return the key hash: a BINARY of 16 bytes, which `hashes_from_bytes` reads.

    It is null if a key column is null.
    """
    if not columns or len(columns) != len(types):
        raise InvalidInputError(
            f"a key of {len(types)} types got {len(columns)} columns; "
            "give one column a type, and at least one"
        )
    return F.expr(key_hash_sql(columns, types, file_format))


def key_hash_sql(columns: Sequence[str], types: Sequence[Atomic], file_format: str) -> str:
    """Return the SQL text of `key_hash`."""
    key = plan_key_sql(columns, types, file_format)
    # `substring` of bytes is fast; of a text (the hex digits) Spark decodes every character
    return f"substring(unhex(sha2({key}, 256)), 1, 16)"


def hash_slot(column: str, slot_count: int) -> Column:
    """Return the slot of a hash, an INT in [0, slot_count), for `repartitionById`.

    The slot is the top bits of the hash, so a slot is a contiguous range of hashes.
    """
    is_power_of_two = slot_count & (slot_count - 1) == 0
    if not 1 <= slot_count <= MAX_SLOTS or not is_power_of_two:
        raise InvalidInputError(
            f"slot count {slot_count} is not a power of two up to {MAX_SLOTS}; choose 1, 2, 4, ..."
        )
    if slot_count <= COMPARED_SLOTS:
        return F.expr(_nearest_sql(column, 0, slot_count, MAX_SLOTS // slot_count))
    top_16_bits = f"cast(conv(hex(substring(`{column}`, 1, 2)), 16, 10) as int)"
    shift = 17 - slot_count.bit_length()
    return F.expr(f"shiftright({top_16_bits}, {shift})")


def _nearest_sql(column: str, first: int, count: int, width: int) -> str:
    """Return the SQL of a binary search for the slot, `count` from `first` on.

    `width` is the number of two-byte prefixes of a hash that belong to one slot. Comparing bytes
    costs a quarter of making a number of them.
    """
    if count == 1:
        return str(first)
    half = count // 2
    middle = first + half
    below = _nearest_sql(column, first, half, width)
    above = _nearest_sql(column, middle, half, width)
    return f"if(`{column}` >= X'{middle * width:04X}', {above}, {below})"


def plan_key_sql(columns: Sequence[str], types: Sequence[Atomic], file_format: str) -> str:
    """Return the SQL text of a key's canonical bytes.

    They are a STRING, or a BINARY if a key column is BINARY: bytes may not be a valid STRING.
    """
    parts = [f"'{key_header(types)}'"]
    for column, kind in zip(columns, types, strict=True):
        parts += _field_sql(f"`{column}`", kind, file_format)
    # The last field is written without its length and colon, or without its comma
    if has_length(types[-1]):
        del parts[-3:-1]
    else:
        del parts[-1]
    if any(kind.name == "binary" for kind in types):
        parts = [f"cast({part} as binary)" for part in parts]
    return f"concat({', '.join(parts)})"


def _field_sql(column: str, kind: Atomic, file_format: str) -> list[str]:
    if has_length(kind):
        return [f"cast(octet_length({column}) as string)", "':'", column]
    return [_text_sql(column, kind, file_format), "','"]


def _text_sql(column: str, kind: Atomic, file_format: str) -> str:
    if kind.name == "boolean":
        return f"cast(cast({column} as int) as string)"
    if parts := decimal_parts(kind.name):
        _, scale = parts
        # A plain cast writes 1E-7 unless ANSI is on
        digits = f"try_cast({column} as string)"
        return f"rtrim('.', rtrim('0', {digits}))" if scale else digits
    return f"cast({_integer_sql(column, kind, file_format)} as string)"


def _integer_sql(column: str, kind: Atomic, file_format: str) -> str:
    if file_format == "orc":
        return column  # dates and timestamps are integers in the file
    match kind.name:
        case "date":
            return f"unix_date({column})"
        case "timestamp":
            return f"unix_micros({column})"
        case "timestamp_ntz":
            # unix_micros takes a timestamp, and a cast to it would use the session's time zone
            seconds = f"cast({column} - TIMESTAMP_NTZ'1970-01-01 00:00:00' as interval second)"
            return f"cast(cast({seconds} as decimal(20, 6)) * 1000000 as bigint)"
    return column
