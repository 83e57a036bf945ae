"""The key hash as native Spark expressions: no UDF, the bytes of `opal_lake.definition.key_hash` whatever ANSI mode and session time zone are.

The 16 bytes go as one binary column: it needs no arithmetic on either side, where two bigints cost Spark two `conv` a row.
"""

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from opal_lake.definition.key_hash import has_length, key_header
from opal_lake.definition.schema import Atomic, decimal_parts
from opal_lake.errors import InvalidInputError

MAX_SLOTS = 1 << 16
COMPARED_SLOTS = 64


def key_hash(columns: Sequence[str], types: Sequence[Atomic], file_format: str) -> Column:
    """BINARY of 16 bytes, as `hashes_from_bytes` reads it; null if a key column is null."""
    if not columns or len(columns) != len(types):
        raise InvalidInputError(
            f"a key of {len(types)} types got {len(columns)} columns; give one column a type, and at least one"
        )
    return F.expr(key_hash_sql(columns, types, file_format))


def key_hash_sql(columns: Sequence[str], types: Sequence[Atomic], file_format: str) -> str:
    """SQL text of the same. The bytes are cut, not the digits: of a text Spark looks at every character."""
    return f"substring(unhex(sha2({plan_key_sql(columns, types, file_format)}, 256)), 1, 16)"


def hash_slot(column: str, slot_count: int) -> Column:
    """INT in [0, slot_count): the top bits of a column of hashes, so that a slot is a contiguous range of them. For `repartitionById`."""
    if not 1 <= slot_count <= MAX_SLOTS or slot_count & (slot_count - 1):
        raise InvalidInputError(
            f"slot count {slot_count} is no power of two up to {MAX_SLOTS}; choose 1, 2, 4, ..."
        )
    if slot_count <= COMPARED_SLOTS:
        return F.expr(_nearest_sql(column, 0, slot_count, MAX_SLOTS // slot_count))
    return F.expr(
        f"shiftright(cast(conv(hex(substring(`{column}`, 1, 2)), 16, 10) as int), {17 - slot_count.bit_length()})"
    )


def _nearest_sql(column: str, first: int, count: int, width: int) -> str:
    """A search by halves: comparing bytes costs a quarter of what making a number of them does."""
    if count == 1:
        return str(first)
    half = count // 2
    below, above = (_nearest_sql(column, begin, half, width) for begin in (first, first + half))
    return f"if(`{column}` >= X'{(first + half) * width:04X}', {above}, {below})"


def plan_key_sql(columns: Sequence[str], types: Sequence[Atomic], file_format: str) -> str:
    """SQL text of the canonical bytes, as STRING, or as BINARY if a key column is one: Spark may check what it casts to STRING."""
    parts = [f"'{key_header(types)}'"]
    for column, kind in zip(columns, types, strict=True):
        parts += _field_sql(f"`{column}`", kind, file_format)
    if has_length(types[-1]):
        del parts[-3:-1]  # the last field has neither a length
    else:
        del parts[-1]  # nor a comma
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
        # a plain cast writes 1E-7 unless ANSI is on
        plain = f"try_cast({column} as string)"
        return f"rtrim('.', rtrim('0', {plain}))" if parts[1] else plain
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
            # unix_micros would want a timestamp, and that cast goes through the session's time zone
            seconds = f"cast({column} - TIMESTAMP_NTZ'1970-01-01 00:00:00' as interval second)"
            return f"cast(cast({seconds} as decimal(20, 6)) * 1000000 as bigint)"
    return column
