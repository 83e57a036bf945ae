"""Records: their fields, and which of them are the id, the order, the operation, the partition."""

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

# The digits that such a number may be written with; an integer has to be equal to it
_DIGITS: dict[DataType, int] = {DoubleType(): 17, FloatType(): 9}
# Spark's reader of JSON fits values into these
_ROUNDED = (DecimalType, DoubleType, FloatType, DateType)
_NUMBERS = (DecimalType, DoubleType, FloatType)
_NUMBER = r"^\s*[+-]?\.?\d[\d.]*([eE][+-]?\d+)?\s*$"
_BITS: dict[DataType, int] = {LongType(): 63, IntegerType(): 31}
_ORDER_KINDS = {"numeric": "decimal(38,10)", "text": "string", "timestamp": "timestamp"}
_CAPITALS = (
    " (it does not distinguish capital letters from small ones): rename one of them. "
    "Nothing was changed"
)
TIME_FORMS = (
    "as 2024-01-31 or 2024-01-31T10:00:00, which may have up to 6 digits of a second and an offset"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The form of records. `fields` are the master's.

    `order` is None where files say what is later. `op` may be a field that only increments have.
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
        """The fields of a row of an increment."""
        if self.op is None or self.op in self.fields.names:
            return StructType([*self.fields.fields])
        return StructType([*self.fields.fields, StructField(self.op, StringType())])

    def unwritable_faults(self) -> list[Column]:
        """Return the reasons for texts that the encoding cannot hold."""
        faults = []
        for field in self.fields:
            # Values of folders are not in the files
            if not isinstance(field.dataType, StringType) or field.name in self.partition_by:
                continue
            fault = lacking(field.name, self.encoding)
            if fault is not None:
                faults.append(fault)
        return faults

    def order_of(self, name: str) -> Column:
        """Return the order as a value that can be compared; null if a text is not one."""
        kind = self.given[name].dataType
        if not isinstance(kind, StringType):
            return F.col(quoted(name))
        return parse_text(F.col(quoted(name)), Atomic(name=_ORDER_KINDS[self.order_type]), {})


def record_of(job: Mutate, fields: StructType, partition_by: Sequence[str]) -> Record:
    """Return the form of records, by a job's names and ordinals of fields.

    `partition_by` are the fields of the master's folders.
    """
    names = fields.names
    refuse_twins(names)
    folders = list(partition_by)
    if job.partition_by and folders:
        wanted = [_field(name, names, "partition_by") for name in job.partition_by]
        if wanted != folders:
            raise InvalidInputError(
                f"the master's folders are of {folders}, "
                f"and partition_by={list(job.partition_by)}; leave it out"
            )
    by_file = job.order in (BY_SUFFIX, BY_POSITION) and job.order not in names
    ids = tuple(_field(name, names, "ids") for name in job.ids)
    if not folders:
        folders = [_field(name, names, "partition_by") for name in job.partition_by]
    if len(folders) >= len(names):
        raise InvalidInputError("partition_by names all fields; a file needs at least one")
    op = None if job.op_field is None else _op_field(job.op_field, names)
    order = None if by_file else _field(job.order, names, "order")
    return Record(
        fields=fields,
        ids=ids,
        order=order,
        order_type=job.order_type,
        op=op,
        partition_by=tuple(folders),
    )


def schema_given(spark: SparkSession, text: str | None) -> StructType | None:
    if text is None:
        return None
    return spark.createDataFrame([], text).schema


def fitted(column: Column, given: DataType, field: StructField) -> tuple[Column, Column | None]:
    """Convert a value to the type of a field; return it with its fault.

    The fault is a text where the value is not of that type, or would be changed, and otherwise
    null. It is None for a value that has the type already.
    """
    if given == field.dataType:
        return column, None
    kind = schema_of_arrow(arrow_of_spark(StructType([field]))).fields[0].type
    original = column
    if isinstance(given, StringType) and isinstance(kind, Atomic):
        if kind.name != "string":
            original = F.nullif(column, F.lit(""))  # an empty text is a missing value
        value = parse_text(original, kind, {})
        is_exact = ~_is_rounded(original, value, field.dataType)
    else:
        value = column.try_cast(field.dataType)
        is_exact = _is_cast_exactly(column, value, given, field.dataType)
    reason = f"column {field.name!r} is of another type"
    if isinstance(kind, Atomic):
        reason = wrong_type(field.name, kind)
        if isinstance(given, StringType) and kind.name == "timestamp":
            reason += f", {TIME_FORMS}"
    is_wrong = original.isNotNull() & (value.isNull() | ~is_exact)
    return value, F.when(is_wrong, F.lit(reason))


def _is_cast_exactly(column: Column, value: Column, given: DataType, kind: DataType) -> Column:
    """Return whether a cast back gives the same value."""
    is_exact = F.lit(True)
    if not isinstance(kind, StringType):  # a text holds every value
        cast_back = comparable(value.try_cast(given), given)
        is_exact = cast_back.eqNullSafe(comparable(column, given))
    is_of_floats = given in _DIGITS or kind in _DIGITS
    bits = _BITS.get(given, _BITS.get(kind))
    if is_of_floats and bits is not None:
        # Spark casts a number just beyond the greatest integer to that integer, and casts this
        # back to the same number: casting back does not show the change
        number = column if given in _DIGITS else value
        is_exact &= number < F.lit(2.0**bits)
    return is_exact


def rounded(line: Column, fields: Sequence[StructField]) -> list[Column]:
    """Return the faults of JSON values that the types of their fields would change.

    Each column is a text where a value would be changed, and otherwise null.
    """
    inexact = [field for field in fields if isinstance(field.dataType, _ROUNDED)]
    # Read as texts: a number that Spark has parsed no longer shows what was written
    as_texts = StructType([StructField(field.name, StringType()) for field in inexact])
    texts = F.from_json(line, as_texts)
    faults = []
    for field in inexact:
        _, fault = fitted(texts.getField(field.name), StringType(), field)
        if fault is not None:
            faults.append(fault)
    return faults


def rounded_texts(fields: Sequence[StructField]) -> list[Column]:
    """Return the reasons for numbers of CSV that are not exact in their fields' types."""
    faults = []
    for field in fields:
        if not isinstance(field.dataType, _NUMBERS):
            continue
        text = F.col(quoted(field.name))
        _, fault = fitted(text, StringType(), field)
        if fault is not None:
            faults.append(F.when(text.rlike(_NUMBER), F.concat(fault, F.lit(": "), text)))
    return faults


def misread(line: Column, fields: Sequence[StructField], *, is_whole: bool) -> list[Column]:
    """Return the reasons for values that Spark's reader of JSON would lose or change.

    These are unknown keys, keys that occur twice, and values of other types, at any depth.
    `is_whole` says whether the fields are all that a line may have.
    """
    if not fields:
        return []
    given = F.try_parse_json(line)
    own = schema_of_arrow(arrow_of_spark(StructType(list(fields)))).fields
    typed = F.try_variant_get(given, F.lit("$"), fields_type(own))
    faults = []
    for field in own:
        target = Target(kind=field.type, path=field.name, patterns={})
        faults.append(decode(typed.getField(field.name), target).getField("fault"))
    is_unparsed = given.isNull() & (F.trim(line) != "")
    unparsed = F.when(is_unparsed, F.lit("the line is not plain JSON, or has a key twice"))
    unknown = [unknown_key(keys_of(given), typed, own)] if is_whole else []
    return [unparsed, *faults, *unknown]


def is_nested(kind: DataType) -> bool:
    """Return whether values of a type have members or elements."""
    return isinstance(kind, StructType | ArrayType | MapType)


def other_members(given: DataType, expected: DataType, path: str) -> str | None:
    """Return how the members of a nested type differ from the expected ones, or None.

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
    for pair in pairs:
        difference = other_members(*pair)
        if difference is not None:
            return difference
    return None


def lost_fields(existing: DataType, given: DataType, path: str = "") -> list[str]:
    """Return the paths of existing fields and members that are not given."""
    match existing, given:
        case StructType(), StructType():
            kinds = {field.name.casefold(): field.dataType for field in given}
            lost = []
            for field in existing:
                inside = f"{path}.{field.name}" if path else field.name
                kind = kinds.get(field.name.casefold())
                if kind is None:
                    lost.append(inside)
                else:
                    lost += lost_fields(field.dataType, kind, inside)
            return lost
        case ArrayType(), ArrayType():
            return lost_fields(existing.elementType, given.elementType, f"{path}.element")
        case MapType(), MapType():
            return lost_fields(existing.valueType, given.valueType, f"{path}.value")
    return []


def several_values(line: Column) -> Column:
    """Return whether a line of JSON has several values: Spark reads only the first."""
    in_array = F.json_array_length(F.concat(F.lit("["), line, F.lit("]")))
    # A `]` of the line may close the array, and Spark ignores what follows: then the 0 is missing
    before_zero = F.json_array_length(F.concat(F.lit("["), line, F.lit(",0]")))
    is_one = (in_array == 1) & (before_zero == 2)
    return (F.trim(line) != "") & ~F.coalesce(is_one, F.lit(False))


def key_twice(line: Column) -> Column:
    """Return whether an object of JSON has a key twice, as Spark reads it."""
    keys = F.transform(F.json_object_keys(line), F.lower)
    return F.size(F.array_distinct(keys)) < F.size(keys)


def comparable(value: Column, kind: DataType) -> Column:
    """Return a form of a value that Spark compares and hashes."""
    if isinstance(kind, AtomicType):
        return value
    # Spark neither compares nor hashes maps, wherever they are in a value
    text = F.to_json(F.struct(value.alias("value")), JSON_WRITE)
    return F.when(value.isNotNull(), text)


def _is_rounded(text: Column, value: Column, kind: DataType) -> Column:
    """Return whether a number has more digits than a floating-point number of a type."""
    if kind not in _DIGITS:
        return F.lit(False)
    digits = F.regexp_replace(text, r"[eE].*|\D", "")
    has_many = F.length(F.trim(digits, F.lit("0"))) > _DIGITS[kind]
    is_integer = text.rlike(r"^\s*[+-]?\d+\s*$")
    is_same = value.try_cast("decimal(38,0)") == text.try_cast("decimal(38,0)")
    return F.when(is_integer, ~F.coalesce(is_same, F.lit(False))).otherwise(has_many)


def unknown_names(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return a problem for each unknown name, with the known name that is close to it."""
    problems = []
    for name in names:
        if name in known:
            continue
        problem = f"unknown field {name!r}"
        close = get_close_matches(name, known, n=1)
        if close:
            problem += f" (did you mean {close[0]!r}?)"
        problems.append(problem)
    return problems


@contextmanager
def repeated_names(files: str) -> Iterator[None]:
    """Raise an error that names the files where Spark finds a column twice."""
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
    """Raise InvalidInputError for names that differ in capitals alone, or not at all."""
    plain = [name.casefold() for name in names]
    twins = [name for name in names if plain.count(name.casefold()) > 1]
    if twins:
        raise InvalidInputError(
            f"the fields {' and '.join(map(repr, twins))} are one to Spark{_CAPITALS}"
        )


def values_text(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def refuse_unmet_op(record: Record) -> None:
    """Raise InvalidInputError for an operation that no record has.

    Deletes would be updates.
    """
    raise InvalidInputError(
        f"op_field names the field {record.op!r}, which neither the master nor the increments "
        f"have; known are {', '.join(record.fields.names)}. Correct the name, or leave op_field "
        "out if no row is a delete. Nothing was changed"
    )


def _op_field(name: str, names: Sequence[str]) -> str:
    """Return the field of the operation, which the master may lack."""
    # Of rows without names it is then the cell after the master's
    if name == str(len(names)):
        return f"_c{name}"
    is_known = name.casefold() in {known.casefold() for known in names}
    if name.isdecimal() or is_known:
        return _field(name, names, "op_field")
    return name


def _field(name: str, names: Sequence[str], argument: str) -> str:
    if name in names:
        return name
    if name.isdecimal() and int(name) < len(names):
        return names[int(name)]
    known = f"known are {', '.join(names)}"
    if name.isdecimal():
        known = f"records have {len(names)} fields, from 0"
    raise InvalidInputError(
        f"{argument} names the field {name!r}, which records do not have; {known}"
    )
