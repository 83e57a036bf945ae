"""Runs of scripts: several statements in one text, which semicolons separate."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from opal_lake.errors import InvalidInputError
from opal_lake.result import JobResult
from opal_lake.scripts import StepOnTable, operations_of_step, stored_results
from opal_lake.sql.script import ScriptStep, changed_uri, read_script
from opal_lake.sql.statements import Call, DropTable, Slice
from opal_spark.engine.failures import spark_errors
from opal_spark.engine.versions import check_session
from opal_spark.spark_sql.arguments import Arguments, Given
from opal_spark.spark_sql.catalog import catalog_of
from opal_spark.spark_sql.results import job_frame
from opal_spark.spark_sql.run import check_runnable, is_on_opal, run
from opal_spark.spark_sql.syntax import check_syntax
from opal_spark.table import OpalTable

_RAN_BEFORE = "it ran in an earlier run of the script"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A statement of a script that has run, by its number, and its result."""

    number: int
    total: int
    statement: Slice
    rows: DataFrame


def run_script(
    spark: SparkSession,
    text: str,
    args: Mapping[str, Any] | None = None,
    token: str | None = None,
    on_start: Callable[[ScriptStep], None] | None = None,
) -> Iterator[Step]:
    """Run the statements of a script in their order, and yield each result.

    A result must be used before the next one is asked for: queries run when they are used. All
    statements are parsed before the first one runs. With a `token` each statement that changes an
    Opal table has a token of its own, `token/1` and so on by its number, so that a repeat of the
    script goes on where it stopped. Changes of tables of Spark are refused then. The statement of a
    single-statement script has the token itself. `on_start` is called before each statement.
    """
    check_session(spark)
    steps = read_script(text)
    given = dict(args) if args else None
    if token is not None:
        for step in steps:
            _refuse_without_token(spark, step, given)
    for step in steps[1:]:
        # The first one is read when it runs, before it changes anything
        _check(spark, step, given, text)
    with spark_errors():
        ran_before = _ran_before(spark, steps, given or {}, token)
    for step in steps:
        if on_start is not None:
            on_start(step)
        statement = step.statement
        try:
            with spark_errors():
                earlier = ran_before.get(step.number)
                if earlier is not None:
                    rows = job_frame(spark, earlier)
                else:
                    arguments = Arguments(given, statement.text)
                    rows = run(spark, statement, arguments, _token(step, token), text)
                yield Step(
                    number=step.number, total=step.total, statement=statement.text, rows=rows
                )
        except GeneratorExit:
            raise
        except Exception as error:
            if step.total > 1:
                error.add_note(_statement_note(step))
            raise


def _token(step: ScriptStep, token: str | None) -> str | None:
    """Return the token of a statement; None for one that changes no table."""
    if token is None or not operations_of_step(step):
        return None
    return step.token_in(token)


def _check(spark: SparkSession, step: ScriptStep, args: Given, text: str) -> None:
    """Raise InvalidInputError for a statement that cannot run in any case."""
    statement = step.statement
    arguments = Arguments(args, statement.text)
    try:
        with spark_errors():
            changes_opal = is_on_opal(spark, statement, arguments)
    except InvalidInputError:
        # An earlier statement may define what the name needs; the run reports what is wrong
        return
    try:
        check_runnable(spark, statement, arguments)
        check_syntax(spark, statement, text, is_on_opal=changes_opal)
    except InvalidInputError as error:
        error.add_note(
            f"It is statement {step.number} of {step.total}, at line {step.line}: "
            f"{step.first_line}\nAll statements are read first, so that none has run."
        )
        raise


def _refuse_without_token(spark: SparkSession, step: ScriptStep, args: Given) -> None:
    """Raise InvalidInputError for a change of a table of Spark, which takes no token."""
    statement = step.statement
    if not operations_of_step(step):
        return
    try:
        with spark_errors():
            is_protected = is_on_opal(spark, statement, Arguments(args, statement.text))
    except InvalidInputError:
        # An earlier statement may define what the name needs; the run reports what is wrong
        return
    if not is_protected:
        raise InvalidInputError(
            f"statement {step.number}, at line {step.line}, changes a table of Spark, which keeps "
            "no token, so that a repeat of the script would change it again: "
            f"{step.first_line}\nRun it in a script without a token, or write the name of an Opal "
            "table, such as lake.shop.orders"
        )


def _ran_before(
    spark: SparkSession, steps: Sequence[ScriptStep], args: Mapping[str, Any], token: str | None
) -> dict[int, JobResult]:
    """Return the results of statements that ran before, by their numbers.

    Statements run in order: if one of them has left its result, those before it have run. A DROP
    TABLE leaves no result, and the table that it drops loses those of earlier statements.
    """
    if token is None:
        return {}
    on_tables = [_on_table(spark, step, args) for step in steps]
    results = stored_results(on_tables, token, partial(OpalTable.for_path, spark))
    ran: dict[int, JobResult] = {}
    has_later = False
    for on_table, result in reversed([*zip(on_tables, results, strict=True)]):
        if result is not None:
            ran[on_table.step.number] = result
            has_later = True
        elif has_later and _is_change(on_table):
            ran[on_table.step.number] = _result_of_earlier_run(on_table)
    return ran


def _is_change(on_table: StepOnTable) -> bool:
    """Return whether a repeat of a statement might change something once more."""
    is_without_token = isinstance(on_table.step.statement, DropTable | Call)
    return on_table.leaves_result or (on_table.uri is not None and is_without_token)


def _result_of_earlier_run(on_table: StepOnTable) -> JobResult:
    assert on_table.uri is not None
    return JobResult(
        operation=on_table.step.first_line.split()[0].lower(),
        table=on_table.uri,
        repeated=True,
        notes=(_RAN_BEFORE,),
    )


def _on_table(spark: SparkSession, step: ScriptStep, args: Mapping[str, Any]) -> StepOnTable:
    uri = None
    # The run of the statement reports what is wrong with the name, or lets Spark compute it
    with suppress(InvalidInputError):
        uri = changed_uri(step.statement, args, lambda first: catalog_of(spark, (first,)))
    return StepOnTable(step=step, uri=uri)


def _statement_note(step: ScriptStep) -> str:
    before = "no statement ran before it"
    if step.number == 2:
        before = "the one before it ran, and what it changed stays"
    elif step.number > 2:
        before = f"the {step.number - 1} before it ran, and what they changed stays"
    return (
        f"It is statement {step.number} of {step.total}, at line {step.line}: {step.first_line}\n"
        f"{before[0].upper()}{before[1:]}."
    )
