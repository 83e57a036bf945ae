"""The types that conditions know, and which of them meet.

Integers and decimals are the exact numbers: they compare exactly, and a sum has all its digits.
Float is double with fewer digits; where a double is involved, all becomes double.
"""

from dataclasses import dataclass
from decimal import Context, Decimal

from opal_lake.definition.schema import Atomic, DataType, atomic_type_name, decimal_parts

MAX_PRECISION = 38
_WIDE = Context(prec=100)  # more digits than any number here
INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_INTEGER_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type by its name in the table's schema; a decimal has digits, `scale` of them behind the point."""

    name: str
    precision: int = 0
    scale: int = 0

    @property
    def atomic(self) -> str:
        """Return the type as the format names it."""
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name

    @property
    def shown(self) -> str:
        """Return the type as a message names it."""
        return self.name if self.name == NESTED.name else atomic_type_name(self.atomic)

    @property
    def is_integer(self) -> bool:
        return self.name in INTEGER_BITS

    @property
    def is_exact(self) -> bool:
        return self.is_integer or self.name == "decimal"

    @property
    def is_binary_fraction(self) -> bool:
        return self.name in ("float", "double")

    @property
    def is_number(self) -> bool:
        return self.is_exact or self.is_binary_fraction


BOOLEAN, DOUBLE, STRING = Kind(name="boolean"), Kind(name="double"), Kind(name="string")
INTEGER, LONG, DATE = Kind(name="integer"), Kind(name="long"), Kind(name="date")
NESTED = Kind(name="nested")


def decimal_kind(precision: int, scale: int) -> Kind:
    """Return the decimal of so many digits."""
    return Kind(name="decimal", precision=precision, scale=scale)


def kind_of(column: DataType) -> Kind:
    """Return the kind of a column of the schema."""
    if not isinstance(column, Atomic):
        return NESTED
    parts = decimal_parts(column.name)
    return decimal_kind(*parts) if parts else Kind(name=column.name)


def digits_of(kind: Kind) -> tuple[int, int]:
    """Return how many digits an exact number has before and behind the point."""
    if kind.is_integer:
        return _INTEGER_DIGITS[kind.name], 0
    return kind.precision - kind.scale, kind.scale


def as_decimal(kind: Kind) -> Kind:
    """Return the decimal that holds all values of an exact kind."""
    before, behind = digits_of(kind)
    return decimal_kind(max(1, before + behind), behind)


def literal_kind(value: int | Decimal) -> Kind:
    """Return the narrowest decimal that holds the number."""
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    return decimal_kind(max(1, len(digits) + max(0, exponent), scale), scale)


def holds(kind: Kind, value: int | Decimal) -> bool:
    """Whether the exact kind has exactly this value."""
    number = Decimal(value)
    before, behind = digits_of(kind)
    scaled = number.scaleb(behind, _WIDE)
    if scaled != scaled.to_integral_value():
        return False
    if kind.is_integer:
        half = 1 << (INTEGER_BITS[kind.name] - 1)
        return -half <= int(number) < half
    return bool(abs(int(scaled)) < 10 ** (before + behind))


def common_exact(first: Kind, second: Kind) -> Kind | None:
    """Return the narrowest kind of all values of both; None if it had more than 38 digits."""
    if first == second:
        return first
    if first.is_integer and second.is_integer:
        return max(first, second, key=lambda kind: INTEGER_BITS[kind.name])
    (before, behind), (other_before, other_behind) = digits_of(first), digits_of(second)
    scale = max(behind, other_behind)
    precision = max(before, other_before) + scale
    return decimal_kind(precision, scale) if precision <= MAX_PRECISION else None


def result_of(op: str, left: Kind, right: Kind) -> Kind | None:
    """Return the kind of `+ - * %` of two decimals; None if it may have more than 38 digits."""
    scale = max(left.scale, right.scale)
    before = (left.precision - left.scale, right.precision - right.scale)
    if op == "%":
        return decimal_kind(max(1, min(before) + scale), scale)
    if op == "*":
        precision, scale = left.precision + right.precision, left.scale + right.scale
        # One digit more, which no product needs, is the type that Spark and Arrow give it.
        precision += precision < MAX_PRECISION
        is_given_by_spark = precision < MAX_PRECISION or not scale
        fits = precision <= MAX_PRECISION and is_given_by_spark
        return decimal_kind(precision, scale) if fits else None
    precision = max(before) + scale + 1
    return decimal_kind(precision, scale) if precision <= MAX_PRECISION else None
