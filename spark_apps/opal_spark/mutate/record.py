"""What a record is: its fields, which of them make its id, its order, its operation and its partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from opal_lake.errors import InvalidInputError
from opal_lake.job.operations.folder import Mutate
from opal_lake.job.source import BY_POSITION, BY_SUFFIX
from opal_lake.spec.schema import Atomic, schema_of_arrow
from opal_spark.engine.columns import arrow_of_spark, quoted
from opal_spark.sources.cells import parse_text, wrong_type

_ORDER_KINDS = {"numeric": "decimal(38,10)", "text": "string", "timestamp": "timestamp"}
TIME_FORMS = "as 2024-01-31 or 2024-01-31T10:00:00, which may have up to 6 digits of a second and an offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`fields` are the master's. `order` is None where files say what is later. `op` may be a field that only increments have.

    `by_line`: its files are CSV, and read line by line.
    """

    fields: StructType
    ids: tuple[str, ...]
    order: str | None
    order_type: str
    op: str | None
    partition_by: tuple[str, ...]
    by_line: bool = False

    @property
    def given(self) -> StructType:
        """What a row of an increment has."""
        extra = [StructField(self.op, StringType())] if self.op is not None and self.op not in self.fields.names else []
        return StructType([*self.fields.fields, *extra])

    def order_of(self, name: str) -> Column:
        """The order as something that can be compared; null if a text is not one."""
        kind = self.given[name].dataType
        if not isinstance(kind, StringType):
            return F.col(quoted(name))
        return parse_text(F.col(quoted(name)), Atomic(name=_ORDER_KINDS[self.order_type]), {})


def record_of(job: Mutate, fields: StructType, partition_by: Sequence[str]) -> Record:
    """Names and ordinals of a job against the fields that there are."""
    names = fields.names
    if job.partition_by and partition_by and [_field(name, names, "partition_by") for name in job.partition_by] != list(partition_by):
        raise InvalidInputError(
            f"the master's folders are of {list(partition_by)}, and partition_by={list(job.partition_by)}; leave it out"
        )
    by_file = job.order in (BY_SUFFIX, BY_POSITION) and job.order not in names
    ids = tuple(_field(name, names, "ids") for name in job.ids)
    parts = tuple(partition_by) or tuple(_field(name, names, "partition_by") for name in job.partition_by)
    if len(parts) >= len(names):
        raise InvalidInputError("partition_by names all fields; a file needs one at least")
    op = job.op_field if job.op_field is None or _is_new(job.op_field, names) else _field(job.op_field, names, "op_field")
    order = None if by_file else _field(job.order, names, "order")
    return Record(fields=fields, ids=ids, order=order, order_type=job.order_type, op=op, partition_by=parts)


def schema_given(spark: SparkSession, text: str | None) -> StructType | None:
    return None if text is None else spark.createDataFrame([], text).schema


def fitted(column: Column, given: DataType, field: StructField) -> tuple[Column, Column | None]:
    """A value as the field's type, and the reason if there was one that is not."""
    if given == field.dataType:
        return column, None
    kind = schema_of_arrow(arrow_of_spark(StructType([field]))).fields[0].type
    if isinstance(given, StringType) and isinstance(kind, Atomic):
        text = column if kind.name == "string" else F.nullif(column, F.lit(""))
        value = parse_text(text, kind, {})
    else:
        text, value = column, column.try_cast(field.dataType)
    forms = f", {TIME_FORMS}" if isinstance(given, StringType) and kind == Atomic(name="timestamp") else ""
    reason = f"{wrong_type(field.name, kind)}{forms}" if isinstance(kind, Atomic) else f"column {field.name!r} is of another type"
    return value, F.when(text.isNotNull() & value.isNull(), F.lit(reason))


def unknown_names(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """With what was perhaps meant."""
    found = []
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            found.append(f"unknown field {name!r}" + (f" (did you mean {close[0]!r}?)" if close else ""))
    return found


def values_text(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _is_new(name: str, names: Sequence[str]) -> bool:
    """An operation's field that the master lacks."""
    return name not in names and not name.isdecimal()


def _field(name: str, names: Sequence[str], argument: str) -> str:
    if name in names:
        return name
    if name.isdecimal() and int(name) < len(names):
        return names[int(name)]
    known = f"there are {len(names)} fields, from 0" if name.isdecimal() else f"known are {', '.join(names)}"
    raise InvalidInputError(f"{argument} names the field {name!r}, which records do not have; {known}")
