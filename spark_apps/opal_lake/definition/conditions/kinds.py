"""The types that conditions know, and the common type of two.

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
    """A type by its name in the table's schema.

    A decimal has `precision` digits, `scale` of them behind the point.
    """

    name: str
    precision: int = 0
    scale: int = 0

    @property
    def atomic(self) -> str:
        """The type as the format names it."""
        if self.name == "decimal":
            return f"decimal({self.precision},{self.scale})"
        return self.name

    @property
    def shown(self) -> str:
        """The type as a message names it."""
        if self.name == NESTED.name:
            return self.name
        return atomic_type_name(self.atomic)

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
    """Return the decimal of these digits."""
    return Kind(name="decimal", precision=precision, scale=scale)


def kind_of(column: DataType) -> Kind:
    """Return the kind of a column of the schema."""
    if not isinstance(column, Atomic):
        return NESTED
    parts = decimal_parts(column.name)
    if parts is not None:
        return decimal_kind(*parts)
    return Kind(name=column.name)


def digits_of(kind: Kind) -> tuple[int, int]:
    """Return the numbers of digits that an exact kind has before and behind the point."""
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
    """Return whether the exact kind has exactly this value."""
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
    """Return the narrowest kind of all values of both; None beyond 38 digits."""
    if first == second:
        return first
    if first.is_integer and second.is_integer:
        return max(first, second, key=lambda kind: INTEGER_BITS[kind.name])
    before, behind = digits_of(first)
    other_before, other_behind = digits_of(second)
    scale = max(behind, other_behind)
    precision = max(before, other_before) + scale
    return decimal_kind(precision, scale) if precision <= MAX_PRECISION else None


def result_of(op: str, left: Kind, right: Kind) -> Kind | None:
    """Return the kind of `+ - * %` of two decimals; None beyond 38 digits."""
    if op == "*":
        return _product_of(left, right)
    scale = max(left.scale, right.scale)
    before = (left.precision - left.scale, right.precision - right.scale)
    if op == "%":
        # A remainder is smaller than both numbers
        return decimal_kind(max(1, min(before) + scale), scale)
    # A sum may carry one digit more
    precision = max(before) + scale + 1
    if precision > MAX_PRECISION:
        return None
    return decimal_kind(precision, scale)


def _product_of(left: Kind, right: Kind) -> Kind | None:
    precision, scale = left.precision + right.precision, left.scale + right.scale
    if precision < MAX_PRECISION:
        # One digit more than any product needs: the type of Spark and Arrow
        precision += 1
    # At 38 digits Spark may cut the scale, unless it is 0
    is_given_by_spark = precision < MAX_PRECISION or not scale
    if precision > MAX_PRECISION or not is_given_by_spark:
        return None
    return decimal_kind(precision, scale)
