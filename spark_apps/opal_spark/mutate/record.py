"""Records: their fields, and which fields are the id, the order, the operation, the partition."""

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

# The most digits that a text of a floating-point number may have; an integer must be exact instead
_DIGITS: dict[DataType, int] = {DoubleType(): 17, FloatType(): 9}
# Types to which Spark's reader of JSON would round values
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
    "such as 2024-01-31 or 2024-01-31T10:00:00, with up to 6 digits after the second and an "
    "optional offset"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The form of records. `fields` are the fields of the master.

    `order` is None if the order comes from the files' names or positions. `op` may be a field that
    only increments have. `by_line` is set if the master's files are CSV that is read line by line.
    `encoding` is the one in which CSV is written.
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
        """Return a column for each field: the reason if the encoding cannot hold the text."""
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
        """Return the order as a value that can be compared; null if a text is not valid."""
        kind = self.given[name].dataType
        if not isinstance(kind, StringType):
            return F.col(quoted(name))
        return parse_text(F.col(quoted(name)), Atomic(name=_ORDER_KINDS[self.order_type]), {})


def record_of(job: Mutate, fields: StructType, partition_by: Sequence[str]) -> Record:
    """Return the form of records for a job, which names fields by name or ordinal.

    `partition_by` are the fields of the master's folders.
    """
    names = fields.names
    refuse_twins(names)
    folders = list(partition_by)
    if job.partition_by and folders:
        wanted = [_field(name, names, "partition_by") for name in job.partition_by]
        if wanted != folders:
            raise InvalidInputError(
                f"the master is partitioned by {folders}, not by "
                f"partition_by={list(job.partition_by)} (--partition-by); leave it out"
            )
    by_file = job.order in (BY_SUFFIX, BY_POSITION) and job.order not in names
    ids = tuple(_field(name, names, "ids") for name in job.ids)
    if not folders:
        folders = [_field(name, names, "partition_by") for name in job.partition_by]
    if len(folders) >= len(names):
        raise InvalidInputError(
            "partition_by (--partition-by) names all fields, but a file needs at least one field; "
            "leave a field out"
        )
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
    """Return the schema that a job gives as SQL text; None if it gives none."""
    if text is None:
        return None
    return spark.createDataFrame([], text).schema


def fitted(column: Column, given: DataType, field: StructField) -> tuple[Column, Column | None]:
    """Convert a value to the type of a field; return the value and its fault.

    The fault is the reason if the value is not valid or would be changed, and null otherwise. It is
    None, not a column, if the value has the type already.
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
    has_floats = given in _DIGITS or kind in _DIGITS
    bits = _BITS.get(given, _BITS.get(kind))
    if has_floats and bits is not None:
        # Spark casts 2.0**63 to the greatest integer, and casts this integer back to 2.0**63. So
        # casting back does not show that the value was changed.
        number = column if given in _DIGITS else value
        is_exact &= number < F.lit(2.0**bits)
    return is_exact


def rounding_faults(line: Column, fields: Sequence[StructField]) -> list[Column]:
    """Return a column for each field of a JSON line whose type could change its value.

    The column is the reason if the value would be changed, and null otherwise.
    """
    checked_fields = [field for field in fields if isinstance(field.dataType, _ROUNDED)]
    # Values are read as texts: a number that Spark has parsed may be rounded already
    as_texts = StructType([StructField(field.name, StringType()) for field in checked_fields])
    texts = F.from_json(line, as_texts)
    faults = []
    for field in checked_fields:
        _, fault = fitted(texts.getField(field.name), StringType(), field)
        if fault is not None:
            faults.append(fault)
    return faults


def text_rounding_faults(fields: Sequence[StructField]) -> list[Column]:
    """Return a column for each field of CSV rows whose type could round its text.

    The column is the reason if the text is a number that would be rounded, and null otherwise.
    """
    faults = []
    for field in fields:
        if not isinstance(field.dataType, _NUMBERS):
            continue
        text = F.col(quoted(field.name))
        _, fault = fitted(text, StringType(), field)
        if fault is not None:
            faults.append(F.when(text.rlike(_NUMBER), F.concat(fault, F.lit(": "), text)))
    return faults


def misread_faults(line: Column, fields: Sequence[StructField], *, is_whole: bool) -> list[Column]:
    """Return reasons why Spark would lose or change values of a JSON line.

    The reasons are unknown keys, keys that occur twice, and values of other types, at any depth.
    `is_whole` says that `fields` are all fields of a line: another key is unknown.
    """
    if not fields:
        return []
    parsed = F.try_parse_json(line)
    table_fields = schema_of_arrow(arrow_of_spark(StructType(list(fields)))).fields
    typed = F.try_variant_get(parsed, F.lit("$"), fields_type(table_fields))
    is_unparsed = parsed.isNull() & (F.trim(line) != "")
    unparsed = F.when(is_unparsed, F.lit("the line is not plain JSON, or has a key twice"))
    faults = [unparsed]
    for field in table_fields:
        target = Target(kind=field.type, path=field.name, patterns={})
        faults.append(decode(typed.getField(field.name), target).getField("fault"))
    if is_whole:
        faults.append(unknown_key(keys_of(parsed), typed, table_fields))
    return faults


def is_nested(kind: DataType) -> bool:
    """Return whether values of a type have members or elements."""
    return isinstance(kind, StructType | ArrayType | MapType)


def other_members(given: DataType, expected: DataType, path: str) -> str | None:
    """Return how the fields of a nested type differ from the expected ones, or None.

    A cast of Spark pairs fields by position and ignores their names.
    """
    # Each part of the type: its given and its expected type, and its path
    parts: list[tuple[DataType, DataType, str]] = []
    match given, expected:
        case StructType(), StructType():
            if given.names != expected.names:
                return f"column {path!r} has the fields {given.names} instead of {expected.names}"
            for field in given:
                expected_type = expected[field.name].dataType
                parts.append((field.dataType, expected_type, f"{path}.{field.name}"))
        case ArrayType(), ArrayType():
            parts.append((given.elementType, expected.elementType, f"{path}.element"))
        case MapType(), MapType():
            parts.append((given.keyType, expected.keyType, f"{path}.key"))
            parts.append((given.valueType, expected.valueType, f"{path}.value"))
    for given_part, expected_part, part_path in parts:
        difference = other_members(given_part, expected_part, part_path)
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
    array = F.concat(F.lit("["), line, F.lit("]"))
    # If a `]` of the line closes the array, Spark ignores the text after it: the 0 is missing
    array_with_zero = F.concat(F.lit("["), line, F.lit(",0]"))
    is_one_value = (F.json_array_length(array) == 1) & (F.json_array_length(array_with_zero) == 2)
    return (F.trim(line) != "") & ~F.coalesce(is_one_value, F.lit(False))


def key_twice(line: Column) -> Column:
    """Return whether an object of JSON has a key twice; case makes no difference."""
    keys = F.transform(F.json_object_keys(line), F.lower)
    return F.size(F.array_distinct(keys)) < F.size(keys)


def comparable(value: Column, kind: DataType) -> Column:
    """Return a form of a value that Spark can compare and hash."""
    if isinstance(kind, AtomicType):
        return value
    # Spark cannot compare or hash a value that contains a map
    text = F.to_json(F.struct(value.alias("value")), JSON_WRITE)
    return F.when(value.isNotNull(), text)


def _is_rounded(text: Column, value: Column, kind: DataType) -> Column:
    """Return whether a number's text has more digits than a float type keeps."""
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


def missing_names(needed: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return a problem for each needed name that is not among the names."""
    missing = [name for name in needed if name not in names]
    return [f"field {name!r} is missing" for name in missing]


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
    """Raise InvalidInputError for names that are equal but for capitals."""
    plain = [name.casefold() for name in names]
    twins = [name for name in names if plain.count(name.casefold()) > 1]
    if twins:
        listed = " and ".join(map(repr, twins))
        raise InvalidInputError(f"the fields {listed} are the same field to Spark{_CAPITALS}")


def values_text(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def refuse_unmet_op(record: Record) -> None:
    """Raise InvalidInputError for an operation's field that no record has.

    Without the field, deletes would be merged as updates.
    """
    raise InvalidInputError(
        f"op_field (--op-field) names the field {record.op!r}, which neither the master nor the "
        f"increments have; known are {', '.join(record.fields.names)}. Correct the name, or leave "
        "op_field out if no row is a delete. Nothing was changed"
    )


def _op_field(name: str, names: Sequence[str]) -> str:
    """Return the field of the operation, which the master may lack."""
    # In rows without names, such a field is the cell after the cells of the master's fields
    if name == str(len(names)):
        return f"_c{name}"
    is_known = name.casefold() in {known.casefold() for known in names}
    if name.isdecimal() or is_known:
        return _field(name, names, "op_field")
    return name


def _field(name: str, names: Sequence[str], argument: str) -> str:
    """Return the field that an argument names by name or ordinal."""
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
