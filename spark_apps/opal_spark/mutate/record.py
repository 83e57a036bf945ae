"""What a record is: its fields, which of them make its id, its order, its operation and its partition."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches

from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from opal_lake.definition.schema import Atomic, schema_of_arrow
from opal_lake.errors import InvalidInputError
from opal_lake.operations.mutate import Mutate
from opal_lake.source import BY_POSITION, BY_SUFFIX
from opal_spark.engine.columns import arrow_of_spark, quoted
from opal_spark.mutate.csv_text import JSON_WRITE, lacking
from opal_spark.sources.cells import parse_text, wrong_type
from opal_spark.sources.text.variants import (
    Target,
    decode,
    fields_type,
    keys_of,
    unknown_key,
)

_DIGITS: dict[DataType, int] = {
    DoubleType(): 17,
    FloatType(): 9,
}  # that such a number may be written with; an integer has to be it exactly
_ROUNDED = (
    DecimalType,
    DoubleType,
    FloatType,
    DateType,
)  # Spark's reader of JSON fits values into these
_NUMBERS, _NUMBER = (DecimalType, DoubleType, FloatType), r"^\s*[+-]?\.?\d[\d.]*([eE][+-]?\d+)?\s*$"
_BITS: dict[DataType, int] = {LongType(): 63, IntegerType(): 31}
_ORDER_KINDS = {"numeric": "decimal(38,10)", "text": "string", "timestamp": "timestamp"}
_CAPITALS = (
    " (it does not tell capital letters from small ones): rename one of them. Nothing was changed"
)
TIME_FORMS = (
    "as 2024-01-31 or 2024-01-31T10:00:00, which may have up to 6 digits of a second and an offset"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`fields` are the master's. `order` is None where files say what is later. `op` may be a field that only increments have.

    `by_line`: its files are CSV, and read line by line. `encoding`: that in which CSV is written.
    """

    fields: StructType
    ids: tuple[str, ...]
    order: str | None
    order_type: str
    op: str | None
    partition_by: tuple[str, ...]
    by_line: bool = False
    encoding: str = "UTF-8"

    @property
    def given(self) -> StructType:
        """What a row of an increment has."""
        extra = (
            [StructField(self.op, StringType())]
            if self.op is not None and self.op not in self.fields.names
            else []
        )
        return StructType([*self.fields.fields, *extra])

    def unwritable(self) -> list[Column]:
        """The reasons for texts that the encoding cannot hold."""
        texts = [
            field.name
            for field in self.fields
            if isinstance(field.dataType, StringType) and field.name not in self.partition_by
        ]
        return [
            fault for fault in (lacking(name, self.encoding) for name in texts) if fault is not None
        ]

    def order_of(self, name: str) -> Column:
        """The order as something that can be compared; null if a text is not one."""
        kind = self.given[name].dataType
        if not isinstance(kind, StringType):
            return F.col(quoted(name))
        return parse_text(F.col(quoted(name)), Atomic(name=_ORDER_KINDS[self.order_type]), {})


def record_of(job: Mutate, fields: StructType, partition_by: Sequence[str]) -> Record:
    """Names and ordinals of a job against the fields that there are."""
    names = fields.names
    refuse_twins(names)
    if (
        job.partition_by
        and partition_by
        and [_field(name, names, "partition_by") for name in job.partition_by] != list(partition_by)
    ):
        raise InvalidInputError(
            f"the master's folders are of {list(partition_by)}, and partition_by={list(job.partition_by)}; leave it out"
        )
    by_file = job.order in (BY_SUFFIX, BY_POSITION) and job.order not in names
    ids = tuple(_field(name, names, "ids") for name in job.ids)
    parts = tuple(partition_by) or tuple(
        _field(name, names, "partition_by") for name in job.partition_by
    )
    if len(parts) >= len(names):
        raise InvalidInputError("partition_by names all fields; a file needs one at least")
    op = None if job.op_field is None else _op_field(job.op_field, names)
    order = None if by_file else _field(job.order, names, "order")
    return Record(
        fields=fields, ids=ids, order=order, order_type=job.order_type, op=op, partition_by=parts
    )


def schema_given(spark: SparkSession, text: str | None) -> StructType | None:
    return None if text is None else spark.createDataFrame([], text).schema


def fitted(column: Column, given: DataType, field: StructField) -> tuple[Column, Column | None]:
    """A value as the field's type, and the reason if there was one that this type cannot hold exactly."""
    if given == field.dataType:
        return column, None
    kind = schema_of_arrow(arrow_of_spark(StructType([field]))).fields[0].type
    if isinstance(given, StringType) and isinstance(kind, Atomic):
        text = column if kind.name == "string" else F.nullif(column, F.lit(""))
        value = parse_text(text, kind, {})
        is_exact = ~_is_rounded(text, value, field.dataType)
    else:
        text, value = column, column.try_cast(field.dataType)
        is_exact = F.lit(True)
        if not isinstance(field.dataType, StringType):  # a text says all
            is_exact = comparable(value.try_cast(given), given).eqNullSafe(
                comparable(column, given)
            )
        if {
            given,
            field.dataType,
        } & _DIGITS.keys():  # Spark makes the greatest integer of a number just beyond it
            number = column if given in _DIGITS else value
            bits = _BITS.get(given, _BITS.get(field.dataType))
            is_exact &= F.lit(True) if bits is None else number < F.lit(2.0**bits)
    forms = (
        f", {TIME_FORMS}"
        if isinstance(given, StringType) and kind == Atomic(name="timestamp")
        else ""
    )
    reason = (
        f"{wrong_type(field.name, kind)}{forms}"
        if isinstance(kind, Atomic)
        else f"column {field.name!r} is of another type"
    )
    return value, F.when(text.isNotNull() & (value.isNull() | ~is_exact), F.lit(reason))


def rounded(line: Column, fields: Sequence[StructField]) -> list[Column]:
    """Of JSON: the reason for each value whose text says more than its field's type can hold."""
    found = [field for field in fields if isinstance(field.dataType, _ROUNDED)]
    texts = F.from_json(
        line, StructType([StructField(field.name, StringType()) for field in found])
    )
    faults = [fitted(texts.getField(field.name), StringType(), field)[1] for field in found]
    return [fault for fault in faults if fault is not None]


def rounded_texts(fields: Sequence[StructField]) -> list[Column]:
    """Of cells of CSV: the reason for each number that says more than its field's type can hold."""
    faults = []
    for field in fields:
        text = F.col(quoted(field.name))
        fault = (
            fitted(text, StringType(), field)[1] if isinstance(field.dataType, _NUMBERS) else None
        )
        if fault is not None:
            faults.append(F.when(text.rlike(_NUMBER), F.concat(fault, F.lit(": "), text)))
    return faults


def misread(line: Column, fields: Sequence[StructField], *, is_whole: bool) -> list[Column]:
    """Return the reasons for which Spark's reader of JSON would lose or change values of fields.

    These are unknown keys, keys that occur twice, and values of other types, at any depth.
    `is_whole` says whether the fields are all that a line may have.
    """
    if not fields:
        return []
    given = F.try_parse_json(line)
    own = schema_of_arrow(arrow_of_spark(StructType(list(fields)))).fields
    typed = F.try_variant_get(given, F.lit("$"), fields_type(own))
    faults = [
        decode(
            typed.getField(field.name), Target(kind=field.type, path=field.name, patterns={})
        ).getField("fault")
        for field in own
    ]
    is_unparsed = given.isNull() & (F.trim(line) != "")
    unparsed = F.when(is_unparsed, F.lit("the line is not plain JSON, or has a key twice"))
    unknown = [unknown_key(keys_of(given), typed, own)] if is_whole else []
    return [unparsed, *faults, *unknown]


def is_nested(kind: DataType) -> bool:
    """Return whether values of a type have members or elements."""
    return isinstance(kind, StructType | ArrayType | MapType)


def other_members(given: DataType, expected: DataType, path: str) -> str | None:
    """Return how the members of a nested type differ from the expected ones; None if they do not.

    A cast of Spark's goes by the positions of members, whatever their names are.
    """
    match given, expected:
        case StructType(), StructType():
            if given.names != expected.names:
                return f"column {path!r} has the fields {given.names}, not {expected.names}"
            pairs = [
                (field.dataType, expected[field.name].dataType, f"{path}.{field.name}")
                for field in given
            ]
        case ArrayType(), ArrayType():
            pairs = [(given.elementType, expected.elementType, f"{path}.element")]
        case MapType(), MapType():
            pairs = [
                (given.keyType, expected.keyType, f"{path}.key"),
                (given.valueType, expected.valueType, f"{path}.value"),
            ]
        case _:
            return None
    return next(filter(None, (other_members(*pair) for pair in pairs)), None)


def lost_fields(found: DataType, given: DataType, path: str = "") -> list[str]:
    """Return the fields and members that are found and not given, by their paths."""
    match found, given:
        case StructType(), StructType():
            kinds = {field.name.casefold(): field.dataType for field in given}
            lost = []
            for field in found:
                inside = f"{path}.{field.name}" if path else field.name
                kind = kinds.get(field.name.casefold())
                lost += [inside] if kind is None else lost_fields(field.dataType, kind, inside)
            return lost
        case ArrayType(), ArrayType():
            return lost_fields(found.elementType, given.elementType, f"{path}.element")
        case MapType(), MapType():
            return lost_fields(found.valueType, given.valueType, f"{path}.value")
    return []


def several_values(line: Column) -> Column:
    """Return whether a line of JSON goes on after its first value, which alone Spark reads."""
    in_array = F.json_array_length(F.concat(F.lit("["), line, F.lit("]")))
    # A `]` of the line may close the array, and Spark ignores what follows: then the 0 is missing
    before_zero = F.json_array_length(F.concat(F.lit("["), line, F.lit(",0]")))
    is_one = (in_array == 1) & (before_zero == 2)
    return (F.trim(line) != "") & ~F.coalesce(is_one, F.lit(False))


def key_twice(line: Column) -> Column:
    """Whether an object of JSON has a key twice, as Spark reads it."""
    keys = F.transform(F.json_object_keys(line), F.lower)
    return F.size(F.array_distinct(keys)) < F.size(keys)


def comparable(value: Column, kind: DataType) -> Column:
    """Spark neither compares nor hashes maps, wherever they are in a value."""
    return (
        value
        if isinstance(kind, AtomicType)
        else F.when(value.isNotNull(), F.to_json(F.struct(value.alias("value")), JSON_WRITE))
    )


def _is_rounded(text: Column, value: Column, kind: DataType) -> Column:
    """Whether a number is written with more digits than a floating-point number keeps."""
    if kind not in _DIGITS:
        return F.lit(False)
    digits = F.regexp_replace(text, r"[eE].*|\D", "")
    is_integer = text.rlike(r"^\s*[+-]?\d+\s*$")
    is_same = F.coalesce(
        value.try_cast("decimal(38,0)") == text.try_cast("decimal(38,0)"), F.lit(False)
    )
    has_many = F.length(F.trim(digits, F.lit("0"))) > _DIGITS[kind]
    return F.when(is_integer, ~is_same).otherwise(has_many)


def unknown_names(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """With what was perhaps meant."""
    found = []
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            found.append(
                f"unknown field {name!r}" + (f" (did you mean {close[0]!r}?)" if close else "")
            )
    return found


@contextmanager
def names_told_apart(files: str) -> Iterator[None]:
    """Spark's refusal of a column that is there twice, as one that says where."""
    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != "COLUMN_ALREADY_EXISTS":
            raise
        name = (error.getMessageParameters() or {}).get("columnName", "")
        raise InvalidInputError(
            f"{files} have the field {name.strip('`')!r} twice{_CAPITALS}"
        ) from error


def refuse_twins(names: Sequence[str]) -> None:
    """Names that differ in capitals alone, or in nothing."""
    plain = [name.casefold() for name in names]
    twins = [name for name in names if plain.count(name.casefold()) > 1]
    if twins:
        raise InvalidInputError(
            f"the fields {' and '.join(map(repr, twins))} are one to Spark{_CAPITALS}"
        )


def values_text(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def refuse_unmet_op(record: Record) -> None:
    """Raise InvalidInputError for an operation that is in no record: deletes would be updates."""
    raise InvalidInputError(
        f"op_field names the field {record.op!r}, which neither the master nor the increments have; "
        f"known are {', '.join(record.fields.names)}. Correct the name, or leave op_field out if no "
        "row is a delete. Nothing was changed"
    )


def _op_field(name: str, names: Sequence[str]) -> str:
    """The master may lack it. Of rows without names it then is the one behind the master's."""
    if name == str(len(names)):
        return f"_c{name}"
    is_known = name.isdecimal() or name.casefold() in {known.casefold() for known in names}
    return _field(name, names, "op_field") if is_known else name


def _field(name: str, names: Sequence[str], argument: str) -> str:
    if name in names:
        return name
    if name.isdecimal() and int(name) < len(names):
        return names[int(name)]
    known = (
        f"there are {len(names)} fields, from 0"
        if name.isdecimal()
        else f"known are {', '.join(names)}"
    )
    raise InvalidInputError(
        f"{argument} names the field {name!r}, which records do not have; {known}"
    )
