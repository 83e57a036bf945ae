"""The rows of a statement on Spark: texts are expressions of Spark, which reads them.

The rows of both sides are joined under internal names. Each kind of clause is evaluated among the
columns of the sides that its rows have: clauses for pairs see both sides, an insert sees the
source, and a clause for rows without a source sees the table. Names without a side that both sides
have are ambiguous, as in any join.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from opal_lake.definition.conditions.expression import VALUE, expression
from opal_lake.definition.conditions.nodes import Constant
from opal_lake.definition.conditions.typing import Columns
from opal_lake.definition.ordering import encode_order, from_order
from opal_lake.definition.schema import (
    DELETED,
    ENDED_OFFSET,
    ENDED_SEGMENT,
    OFFSET,
    RESERVED_PREFIX,
    SEGMENT,
    Atomic,
    Field,
)
from opal_lake.errors import InvalidInputError
from opal_lake.read.statement import Clause, StatementPlan, When, is_on_keys, refuse_repeated
from opal_spark.engine.assign import whole_rows
from opal_spark.engine.columns import columns_named, default_column, quoted, spark_field_type
from opal_spark.engine.conditions import constant
from opal_spark.engine.session import frame_of_arrow, rough_rows
from opal_spark.engine.stored_values import stored_value
from opal_spark.read.clause_scope import with_scope
from opal_spark.read.rows_by_id import BY_IDS, IdLimits, TargetCondition, rows_where
from opal_spark.read.statement_rows import LookUp, key_columns, rows_of_target
from opal_spark.read.statement_text import (
    SqlBuilder,
    SqlText,
    evaluated,
    has_sql_texts,
    in_format,
    plain_text,
)
from opal_spark.read.understood import understood

OF_SOURCE = "_opal_of_source"
_TEXTS = "_opal_texts"
_LATEST, _PLACE = "_opal_latest", "_opal_place"
_SIDES: Mapping[When, tuple[bool, bool]] = {
    "matched": (True, True),
    "not matched": (False, True),
    "not matched by source": (True, False),
}


def statement_rows(
    spark: SparkSession, plan: StatementPlan, limits: IdLimits = BY_IDS
) -> DataFrame:
    """Return the rows that a statement adds, each with the row that it ends.

    Besides the table's columns they have DELETED, ENDED_SEGMENT and ENDED_OFFSET.
    """
    plan.check()
    if plan.source is None:
        return _rows_of_table(spark, with_scope(plan, None), limits)
    plan = with_frame(spark, plan)
    source = source_rows(plan)
    plan = with_scope(plan, source.columns)
    return rows_of_pairs(plan, source, _paired(spark, plan, source))


def guess_statement_rows(plan: StatementPlan, rows: DataFrame) -> int | None:
    """Return a guess of the rows that a statement adds, None if Spark has none.

    Spark's own guess is far too high after a join. Each row of the table and of the source makes at
    most one row.
    """
    guess = rough_rows(rows)
    of_source: int | None = 0
    if isinstance(plan.source, DataFrame):
        of_source = rough_rows(plan.source)
    if of_source is None:
        return guess
    max_rows = sum(file.rows for file in plan.snapshot.files.values()) + of_source
    return max_rows if guess is None else min(guess, max_rows)


def _rows_of_table(spark: SparkSession, plan: StatementPlan, limits: IdLimits) -> DataFrame:
    clauses = plan.of("matched")
    first = clauses[0].where if len(clauses) == 1 else None
    rows = _rows_where(spark, plan, first, limits)
    if has_sql_texts(clauses):
        source = f"{{rows}} AS {in_format(quoted(plan.target))}"
        rows, clauses = evaluated(rows, source, clauses, _TEXTS)
        first = None
    rows = rows.alias(plan.target)
    if first is not None:
        # Each of the rows meets the condition
        clauses = [Clause(when="matched", action=clauses[0].action, values=clauses[0].values)]
    made = rows.select(made_row(plan, clauses, rows, []).alias(DELETED))
    return made.where(F.col(DELETED).isNotNull()).select(f"{DELETED}.*")


def _rows_where(
    spark: SparkSession, plan: StatementPlan, where: Any, limits: IdLimits
) -> DataFrame:
    """Return the rows that meet a condition, maybe more if `spark.sql` evaluates it."""
    plain = plain_text(where)
    if isinstance(where, SqlText) and understood(plain, plan.spec, plan.target) is None:
        return rows_of_target(spark, plan, plain)
    if plain is None:
        return rows_of_target(spark, plan, None)
    condition = TargetCondition(given=plain, holds=condition_column(plain), limits=limits)
    return rows_where(spark, plan, condition, _target_fields(plan))


def with_frame(spark: SparkSession, plan: StatementPlan) -> StatementPlan:
    """Return a plan whose source is a DataFrame, if it is a table of Arrow."""
    if isinstance(plan.source, pa.Table):
        return replace(plan, source=frame_of_arrow(spark, plan.source))
    return plan


def source_rows(plan: StatementPlan) -> DataFrame:
    """Return the source of a statement, with the columns that clauses need.

    That of an insert or an overwrite has whole rows of the table.
    """
    source = plan.source
    if not isinstance(source, DataFrame):
        raise InvalidInputError(
            f"the source of the statement is a {type(source).__name__}; pass a DataFrame or a "
            "pyarrow Table"
        )
    for name in source.columns:
        if name.casefold().startswith(RESERVED_PREFIX):
            raise InvalidInputError(
                f"the source has the column {name!r}: names that begin with {RESERVED_PREFIX!r} "
                "are reserved for the format; drop or rename it"
            )
    refuse_repeated(source.columns)
    if plan.on is None:
        return whole_rows(source, plan.spec)
    plan.check_source(source.columns)
    return _latest(source, plan) if plan.latest else source


def _latest(source: DataFrame, plan: StatementPlan) -> DataFrame:
    """Return the latest row of each key, by delta, tie-breaks and place.

    Rows without a key all remain.
    """
    spec = plan.spec
    given = {field.name.casefold(): field for field in source.schema.fields}
    missing = [field.name for field in spec.ordering if field.name.casefold() not in given]
    if missing:
        raise InvalidInputError(
            f"duplicates='latest' needs the columns {', '.join(missing)} in the source; add them, "
            "or leave one row of each key in the source"
        )
    keys = columns_named(given[key.name.casefold()].name for key in spec.keys)
    order: list[Column] = []
    for field in (spec.delta, *spec.tie_break):
        own = given[field.name.casefold()]
        what = f"column {own.name!r} of the source"
        order.append(stored_value(F.col(quoted(own.name)), own.dataType, field, what))
    # The place of a row decides between equal ones
    placed = source.withColumn(_PLACE, F.monotonically_increasing_id())
    newest_first = [column.desc_nulls_last() for column in [*order, F.col(_PLACE)]]
    window = Window.partitionBy(*keys).orderBy(*newest_first)
    ranked = placed.withColumn(_LATEST, F.row_number().over(window))
    remains = F.col(_LATEST) == 1
    for key in keys:
        remains |= key.isNull()
    return ranked.where(remains).drop(_LATEST, _PLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Rows of both sides: pairs that match, and rows without a match.

    `target` and `source` have the columns of the sides, by their names in `rows`. A row of the
    table has its row id, otherwise null; a row of the source is marked by `OF_SOURCE`.
    """

    rows: DataFrame
    target: Mapping[str, str]
    source: Mapping[str, str]


def _paired(spark: SparkSession, plan: StatementPlan, source: DataFrame) -> Pairs:
    of_source = {f"_opal_s{index}": name for index, name in enumerate(source.columns)}
    fields = _target_fields(plan)
    of_target = {f"_opal_t{index}": field.name for index, field in enumerate(fields)}
    if plan.on is None:
        rows = _named(source, of_source, plan.other)
        ids = [F.lit(None).cast("bigint").alias(SEGMENT), F.lit(None).cast("int").alias(OFFSET)]
        return Pairs(rows=rows.select("*", *ids), target={}, source=of_source)
    keys = None
    if is_on_keys(plan) and not plan.of("not matched by source"):
        keys = key_columns(source, plan.spec)
    if keys is not None:
        fields_by_name = dict(zip(of_target, fields, strict=True))
        rows = LookUp(plan=plan, source=of_source, target=fields_by_name).rows(source, keys)
        rows = rows.withColumn(OF_SOURCE, F.lit(True))
        return Pairs(rows=rows, target=of_target, source=of_source)
    target = rows_of_target(spark, plan, None).alias(plan.target)
    marked = source.withColumn(OF_SOURCE, F.lit(True)).alias(plan.other)
    joined = _joined(plan, target, marked)
    columns = [side_column(plan.target, name).alias(joined) for joined, name in of_target.items()]
    columns += [side_column(plan.other, name).alias(joined) for joined, name in of_source.items()]
    rows = joined.select(*columns, SEGMENT, OFFSET, OF_SOURCE)
    return Pairs(rows=rows, target=of_target, source=of_source)


def _joined(plan: StatementPlan, target: DataFrame, source: DataFrame) -> DataFrame:
    if not isinstance(plan.on, SqlText):
        return target.join(source, condition_column(plan.on), _join_of(plan))
    sides = [in_format(quoted(side)) for side in (plan.target, plan.other)]
    builder = SqlBuilder()
    builder.add(f"SELECT * FROM {{target}} AS {sides[0]} ", target=target)
    builder.add(f"{_join_of(plan)} JOIN {{source}} AS {sides[1]} ON ", source=source)
    builder.add_expression(plan.on)
    return builder.rows(target.sparkSession)


def _named(rows: DataFrame, names: Mapping[str, str], side: str) -> DataFrame:
    columns = [side_column(side, name).alias(joined) for joined, name in names.items()]
    return rows.alias(side).select(*columns, F.lit(True).alias(OF_SOURCE))


def _join_of(plan: StatementPlan) -> str:
    """Return the kind of join that keeps the rows for which there are clauses."""
    keeps_source = bool(plan.of("not matched"))
    keeps_target = bool(plan.of("not matched by source"))
    if keeps_source and keeps_target:
        return "full"
    if keeps_source:
        return "right"
    return "left" if keeps_target else "inner"


def _target_fields(plan: StatementPlan) -> list[Field]:
    """Return the columns of the table that clauses may read.

    A text may read a column if it has the column's name anywhere.
    """
    needed: set[str] = set()
    texts: list[Any] = []
    for clause in plan.clauses:
        given = {name.casefold() for name in clause.values or {}}
        given_texts = [clause.where, *(clause.values or {}).values()]
        texts += [text.text if isinstance(text, SqlText) else text for text in given_texts]
        if clause.action == "delete":
            needed |= {field.name for field in plan.spec.ordering}
        elif clause.action == "update":
            is_given = given if clause.values is not None else _folded(plan.source.columns)
            needed |= {f.name for f in plan.spec.schema.fields if f.name.casefold() not in is_given}
    reads_all = any(isinstance(text, Column) for text in texts)
    read = " ".join(text for text in texts if isinstance(text, str)).casefold()
    fields = []
    for field in plan.spec.schema.fields:
        is_named = field.name.casefold() in read or "`" in field.name
        if reads_all or is_named or field.name in needed:
            fields.append(field)
    return fields


def rows_of_pairs(plan: StatementPlan, source: DataFrame, pairs: Pairs) -> DataFrame:
    rows = pairs.rows
    carried = rows.columns
    made: list[str] = []
    for number, (when, (has_target, has_source)) in enumerate(_SIDES.items()):
        clauses = plan.of(when)
        if not clauses:
            continue
        sides: dict[str, Mapping[str, str]] = {}
        if has_target:
            sides[plan.target] = pairs.target
        if has_source:
            sides[plan.other] = pairs.source
        if has_sql_texts(clauses):
            rows, clauses = _with_texts(rows, sides, clauses, number)
            carried = [name for name in rows.columns if name not in made]
        scope = _with_sides(rows, sides)
        is_of_target = F.col(SEGMENT).isNotNull()
        is_of_source = F.col(OF_SOURCE).isNotNull()
        is_chosen = is_of_target if has_target else ~is_of_target
        is_chosen &= is_of_source if has_source else ~is_of_source
        row = F.when(is_chosen, made_row(plan, clauses, scope, source.columns))
        made.append(f"_opal_made{number}")
        rows = scope.select(*carried, *made[:-1], row.alias(made[-1]))
    rows = rows.select(F.coalesce(*made).alias(DELETED))
    return rows.where(F.col(DELETED).isNotNull()).select(f"{DELETED}.*")


def _with_texts(
    rows: DataFrame,
    sides: Mapping[str, Mapping[str, str]],
    clauses: Sequence[Clause],
    number: int,
) -> tuple[DataFrame, list[Clause]]:
    """Return rows with the values of the clauses' texts, and clauses that read these."""
    has_target, has_source = list(_SIDES.values())[number]
    is_null = {True: "IS NOT NULL", False: "IS NULL"}
    chosen = [f"{SEGMENT} {is_null[has_target]}", f"{OF_SOURCE} {is_null[has_source]}"]
    source = "{rows}" + _laterals(sides)
    return evaluated(rows, source, clauses, f"{_TEXTS}{number}", " AND ".join(chosen))


def _with_sides(rows: DataFrame, sides: Mapping[str, Mapping[str, str]]) -> DataFrame:
    """Return rows in which expressions find columns by their sides.

    `sides` has the names of a side's columns by their internal names. Spark's optimizer makes a
    plain projection of the lateral joins: they only give names.
    """
    return rows.sparkSession.sql("SELECT * FROM {rows}" + _laterals(sides), rows=rows)


def _laterals(sides: Mapping[str, Mapping[str, str]]) -> str:
    """Return the lateral joins that name the columns of sides, for a formatted text."""
    laterals = []
    for side, names in sides.items():
        if names:
            columns = ", ".join(f"{joined} AS {quoted(name)}" for joined, name in names.items())
            laterals.append(f", LATERAL (SELECT {columns}) AS {quoted(side)}")
    return in_format("".join(laterals))


def made_row(
    plan: StatementPlan, clauses: Sequence[Clause], scope: DataFrame, source: Sequence[str]
) -> Column:
    """Return the row that the first fitting clause makes; null if none fits."""
    values = [_values(plan, clause, source) for clause in clauses]
    typed = _stored(scope, clauses, values, plan)
    made: Column | None = None
    for clause, stored in zip(clauses, typed, strict=True):
        condition = F.lit(True) if clause.where is None else condition_column(clause.where)
        row = _row(plan, clause, stored)
        made = F.when(condition, row) if made is None else made.when(condition, row)
    assert made is not None
    return made


def _values(plan: StatementPlan, clause: Clause, source: Sequence[str]) -> dict[str, Column]:
    """Return the new values of a clause by column, in types of their own."""
    if clause.action == "delete":
        return {}
    fields = {field.name.casefold(): field for field in plan.spec.schema.fields}
    if clause.values is not None:
        given = {fields[name.casefold()]: value for name, value in clause.values.items()}
        return {field.name: _value(value, field) for field, value in given.items()}
    names = {name.casefold(): name for name in source}
    columns: dict[str, Column] = {}
    for folded, field in fields.items():
        if folded in names:
            columns[field.name] = side_column(plan.other, names[folded])
    return columns


def _stored(
    scope: DataFrame,
    clauses: Sequence[Clause],
    values: Sequence[Mapping[str, Column]],
    plan: StatementPlan,
) -> list[dict[str, Column]]:
    """Return the values in the types of the table's columns."""
    # One analysis finds the types of all values
    numbered: dict[str, Column] = {}
    for clause_number, of_clause in enumerate(values):
        for number, value in enumerate(of_clause.values()):
            numbered[f"_{clause_number}_{number}"] = value
    if not numbered:
        return [{} for _ in values]
    types = scope.select(*[value.alias(name) for name, value in numbered.items()]).schema
    stored: list[dict[str, Column]] = []
    for clause_number, of_clause in enumerate(values):
        columns: dict[str, Column] = {}
        for number, (name, value) in enumerate(of_clause.items()):
            kind = types[f"_{clause_number}_{number}"].dataType
            what = f"the value of {name!r} in the {clauses[clause_number].action}"
            columns[name] = stored_value(value, kind, plan.spec.schema.field(name), what)
        stored.append(columns)
    return stored


def _row(plan: StatementPlan, clause: Clause, values: Mapping[str, Column]) -> Column:
    """Return the row that a clause makes, as a struct."""
    spec = plan.spec
    columns: list[Column] = []
    for field in spec.schema.fields:
        kind = spark_field_type(field)
        value = default_column(field, field.write if clause.action == "insert" else None)
        if field.name in values:
            value = values[field.name]
        elif clause.action == "delete" and plan.at is not None and field == spec.delta:
            value = _moment(plan).cast(kind)
        elif clause.action == "update" and field.generated is not None:
            # The task that writes the rows computes it of their new values
            value = F.lit(None).cast(kind)
        elif clause.action == "update" or (clause.action == "delete" and field in spec.ordering):
            value = side_column(plan.target, field.name)
        columns.append(value.alias(field.name))
    is_insert = clause.action == "insert"
    segment = F.lit(None) if is_insert else F.col(SEGMENT)
    offset = F.lit(None) if is_insert else F.col(OFFSET)
    return F.struct(
        *columns,
        F.lit(clause.action == "delete").alias(DELETED),
        segment.cast("bigint").alias(ENDED_SEGMENT),
        offset.cast("int").alias(ENDED_OFFSET),
    )


def _moment(plan: StatementPlan) -> Column:
    """Return the delta `at` of deletes."""
    delta = plan.spec.delta
    assert isinstance(delta.type, Atomic)
    order = encode_order(plan.at, delta.type, name="at")
    return _literal(from_order(order, delta.type), delta)


def _value(given: Any, field: Field) -> Column:
    """Return the value of a `set`: a Column, a text of Spark, or a Python value."""
    if isinstance(given, Column):
        return given
    if isinstance(given, str):
        return _parsed(given)
    return _literal(given, field)


def _literal(value: Any, field: Field) -> Column:
    """Return a Python value as a literal that no setting of the session changes."""
    literal = expression(value, field, Columns(fields=[], use=VALUE)).typed
    if literal is None:
        return F.lit(None)
    assert isinstance(literal, Constant)
    return constant(literal)


def condition_column(given: Any) -> Column:
    if isinstance(given, Column):
        return given
    if not isinstance(given, str):
        raise InvalidInputError(
            f"a condition is a text or a Column of Spark, got {type(given).__name__}"
        )
    return _parsed(given)


def _parsed(text: str) -> Column:
    # The line break ends a comment at the end of the text
    return F.expr(f"({text}\n)")


def side_column(side: str, name: str) -> Column:
    return F.col(f"{quoted(side)}.{quoted(name)}")


def _folded(names: Sequence[str]) -> set[str]:
    return {name.casefold() for name in names}
