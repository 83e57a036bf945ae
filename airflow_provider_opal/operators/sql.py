"""SqlOperator: statements of SQL change and query the tables of a lake."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from airflow_provider_opal.asset_events import AssetEvents, outlets_of
from airflow_provider_opal.assets import DEFAULT_CONN_ID, distinct
from airflow_provider_opal.operators.spark import (
    KEY_ASKED_FOR,
    OpalSparkOperator,
    token_of,
)
from airflow_provider_opal.templated import is_templated
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.operations.sql import SHOWN_ROWS, Sql

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_opal.hooks.opal import OpalHook
    from opal_lake.operations.job_spec import JobSpec
    from opal_lake.result import JobResult
    from opal_lake.scripts import StepOnTable
    from opal_lake.sql.names import Catalog

DEFAULT_CATALOG = "lake"
# Linux passes at most 128 KiB in one argument of a process
MAX_SPEC_BYTES = 120_000
_FILE = ".sql"
# The root of the catalog while a DAG file is parsed, when no connection is read
_UNKNOWN_ROOT = "lake:"
_EXPRESSION = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_BLOCK = re.compile(r"\{%.*?%\}|\{#.*?#\}", re.DOTALL)
# Stands for an expression of a template, as a value or as a part of a name
_RENDERED_LATER = "opal_rendered_later"


class SqlOperator(OpalSparkOperator):
    """A task that runs SQL statements on the tables of a lake, in their order.

    `sql` is a text with one or more statements, a list of texts, or the name of a template file
    that ends in .sql. `args` are the values of parameters: `{"day": "{{ ds }}"}` is `:day` in a
    statement. A template's value is a text, so write CAST(:day AS DATE) where another type is
    needed. The table `lake.shop.orders` lies in the root of the connection, at shop/orders;
    `catalog` is another word for `lake`. A path works too: opal.`s3a://lake/shop/orders`.

    All statements are read before the first one runs. A text that cannot be read fails the task
    without a retry. Each statement that changes a table is a commit of its own. If statement 3
    fails, the error names it, and what 1 and 2 changed stays. A retry goes on with statement 3. A
    cleared task runs all statements again. Do not edit a script between a failure and its retry:
    statements are known by their numbers.

    The first `limit` rows of a query are in the task's log, and not in XCom: write rows that other
    tasks need into a table. XCom has the counts of all statements, and in `statements` the number,
    line, first line, table, operation, version and counts of each.

    Tables whose rows change get the events of a MetaGen: their assets are outlets of the task. If a
    template decides which table it is, the task gets the outlet when it runs.
    """

    operation = Sql.name
    note_level = logging.INFO
    template_fields: Sequence[str] = (
        "sql",
        "args",
        *[name for name in OpalSparkOperator.template_fields if name not in ("table", "arguments")],
    )
    template_ext: Sequence[str] = (_FILE,)
    template_fields_renderers: ClassVar[dict[str, str]] = {"sql": "sql", "args": "json"}

    def __init__(
        self,
        *,
        sql: str | Sequence[str],
        args: Mapping[str, Any] | None = None,
        catalog: str = DEFAULT_CATALOG,
        limit: int = SHOWN_ROWS,
        **kwargs: Any,
    ) -> None:
        super().__init__(table=catalog, arguments={"sql": sql, "args": args}, **kwargs)
        # Two template fields hold them, so that the UI shows statements as SQL
        self.arguments = {}
        self.sql = sql
        self.args = args
        self.catalog = catalog
        self.limit = limit
        Sql.checked({"catalogs": {catalog: _UNKNOWN_ROOT}, "limit": limit})
        self._check_texts()
        self.outlets = distinct([*_known_outlets(vars(self)), *self.outlets])
        self._steps: tuple[StepOnTable, ...] = ()
        self._has_ended_well = False

    @classmethod
    def assets_of(cls, given: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
        """Return the outlets of a mapped operator."""
        return {"outlets": _known_outlets(given)}

    def _check_texts(self) -> None:
        """Raise InvalidInputError for known statements that cannot be read."""
        from opal_lake.sql.script import joined_script, read_script

        texts = _texts_of(self.sql)
        if texts and not any(is_templated(text) or text.endswith(_FILE) for text in texts):
            read_script(joined_script(texts))

    def resolve_template_files(self) -> None:
        """Read template files as Airflow does, and find the tables that they name."""
        super().resolve_template_files()
        self.outlets = distinct([*_known_outlets(vars(self)), *self.outlets])
        self._asks_for_key = self._asks_for_key or any(map(_names_key, _texts_of(self.sql)))

    def needs_key(self, context: "Context") -> bool:
        """Return whether a run without a key is refused: only with `keyed=True`."""
        return self.keyed

    def job(self, context: "Context") -> "JobSpec[Any]":
        """Return the job to run, and find the tables that its statements change."""
        from opal_lake.operations.job_spec import JobSpec
        from opal_lake.scripts import steps_of

        self._has_ended_well = False
        try:
            lake = self.opal.lake
            # Raises for a root that is not a whole path
            root = lake.uri("").rstrip("/") if lake.root else ""
            arguments = {
                "sql": self.sql,
                "args": self.args,
                "catalogs": {self.catalog: root} if root else {},
                "limit": self.limit,
            }
            token = token_of(context)
            spec = JobSpec.of(self.operation, root or self.catalog, arguments, token)
            self._steps = steps_of(spec.operation)
        except (AirflowNotFoundException, ValueError) as error:
            message = "\n".join([str(error), *getattr(error, "__notes__", ())])
            raise AirflowFailException(message) from error  # a retry would not help
        size = len(spec.to_json().encode())
        if size > MAX_SPEC_BYTES:
            raise AirflowFailException(
                f"the statements and their parameters have {size} bytes, and a job takes at most "
                f"{MAX_SPEC_BYTES}; split them into several tasks"
            )
        return spec

    def _submitted(
        self, connection_conf: Mapping[str, str], context: "Context"
    ) -> Exception | None:
        failure = super()._submitted(connection_conf, context)
        self._has_ended_well = failure is None
        return failure

    def _result(self, opal: "OpalHook", spec: "JobSpec[Any]") -> "JobResult | None":
        """Return the results that the statements left in their tables, or None.

        The result of the last statement proves that all have run. A query leaves no result: after
        it, Spark's report of a success is needed, too.
        """
        from opal_lake.scripts import script_result, stored_results
        from opal_lake.sql.statements import Call

        assert spec.token is not None
        steps = self._steps
        try:
            results = stored_results(steps, spec.token, opal.table)
        except InvalidInputError as error:
            raise AirflowFailException(str(error)) from error
        is_complete = results[-1] is not None
        if not is_complete and self._has_ended_well:
            # A CALL with dry_run leaves no result
            expected = [s.leaves_result and not isinstance(s.step.statement, Call) for s in steps]
            pairs = zip(expected, results, strict=True)
            is_complete = all(result is not None for is_due, result in pairs if is_due)
        if not is_complete:
            return None
        result = script_result(steps, results, uri=spec.table, token=spec.token)
        return replace(result, repeated=True)

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """Log each statement, and emit the events of the tables whose rows changed."""
        for statement in result.examples:
            if statement.get("operation") is not None:
                self.log.info(
                    "statement %s, line %s (%s): version %s of %s, %s",
                    *(statement[name] for name in ("number", "line", "statement", "version")),
                    *(statement[name] for name in ("table", "counts")),
                )
        xcom = super().finish(context, result)
        xcom["statements"] = xcom.pop("examples")
        changed = dict(_changed_tables(self.opal, self._steps, result))
        own_outlets = []
        for uri, summary in changed.items():
            table = _table_name(uri, self.opal.lake.root)
            if self.lakechime_conn_id is not None:
                from airflow_provider_opal.events.commits import register_commits

                register_commits(self.opal, table, self.lakechime_conn_id, self.log)
            try:
                events = AssetEvents.of(table, self.opal_conn_id)
            except ValueError as error:
                self.log.warning("no asset event is emitted: %s", error)
                continue
            events.emit(context, summary, [])
            own_outlets += events.outlets
        unchanged = [asset for asset in _known_outlets(vars(self)) if asset not in own_outlets]
        others = [outlet for outlet in self.outlets if outlet not in unchanged]
        self.outlets = distinct([*own_outlets, *others])
        return xcom


def _changed_tables(
    opal: "OpalHook", steps: "Sequence[StepOnTable]", result: "JobResult"
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tables whose rows changed, each with its last version and counts."""
    by_table: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for on_table, statement in zip(steps, result.examples, strict=True):
        if statement.get("version") is not None and result.token is not None:
            token = on_table.step.token_in(result.token)
            by_table.setdefault(statement["table"], []).append((token, statement))
    for uri, of_table in by_table.items():
        try:
            log = opal.table(uri).log
            commits = [log.read_commit(statement["version"]) for _, statement in of_table]
        except NotFoundError:
            # A later statement dropped the table
            continue
        versions: list[int] = []
        counts: dict[str, int] = {}
        for (token, statement), commit in zip(of_table, commits, strict=True):
            # A statement without a commit of its own has the version that it read
            if commit.token != token or not commit.changes_view:
                continue
            versions.append(commit.version)
            for name, count in statement["counts"].items():
                counts[name] = counts.get(name, 0) + count
        if versions:
            yield uri, {"version": max(versions), "counts": counts}


def _table_name(uri: str, root: str) -> str:
    """Return the name by which other tasks know a table: shop.orders, or its path."""
    prefix = f"{root.rstrip('/')}/"
    name = uri.removeprefix(prefix)
    if not root or name == uri or "." in name:
        return uri
    return name.replace("/", ".")


def _known_outlets(given: Mapping[str, Any]) -> list[Any]:
    """Return the assets of the tables whose rows the statements change, if known.

    `given` has arguments of the operator.
    """
    opal_conn_id = given.get("opal_conn_id", DEFAULT_CONN_ID)
    texts = _texts_of(given.get("sql"))
    if is_templated(opal_conn_id) or any(text.endswith(_FILE) for text in texts):
        return []
    tables = _known_tables(texts, given.get("args"), given.get("catalog", DEFAULT_CATALOG))
    outlets = []
    for table in tables:
        try:
            outlets += outlets_of(AssetEvents.known(table, opal_conn_id))
        except ValueError:
            # The run warns of a name that no asset can have
            continue
    return distinct(outlets)


def _known_tables(texts: Sequence[str], args: Any, catalog: str) -> list[str]:
    """Return the names of the tables whose rows change, without those of templates."""
    from opal_lake.sql.names import Catalog
    from opal_lake.sql.script import changed_uri, joined_script, read_script

    if not texts:
        return []
    own = Catalog(name=catalog.lower(), root=_UNKNOWN_ROOT)

    def find_catalog(name: str) -> "Catalog | None":
        return own if name.lower() == own.name else None

    plain = [_BLOCK.sub("", _EXPRESSION.sub(_RENDERED_LATER, text)) for text in texts]
    known_args = args if isinstance(args, Mapping) else {}
    tables = []
    try:
        for step in read_script(joined_script(tuple(plain))):
            if _changes_rows(step.statement):
                uri = changed_uri(step.statement, known_args, find_catalog)
                tables.append(uri)
    except InvalidInputError:
        # Only the rendered statements can be read
        return []
    names = [_table_name(uri, _UNKNOWN_ROOT) for uri in tables if uri is not None]
    return [name for name in names if _RENDERED_LATER not in name and not is_templated(name)]


def _changes_rows(statement: Any) -> bool:
    """Return whether a statement changes what a read of its table shows."""
    from opal_lake.sql import statements as kinds

    if isinstance(statement, kinds.CreateTable):
        return statement.query is not None
    return isinstance(
        statement,
        kinds.Delete
        | kinds.InsertInto
        | kinds.InsertReplaceWhere
        | kinds.Merge
        | kinds.Restore
        | kinds.Update,
    )


def _texts_of(sql: Any) -> tuple[str, ...]:
    """Return the texts of a script; none if only the run knows them."""
    texts = [sql] if isinstance(sql, str) else sql
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return ()
    return tuple(texts)


def _names_key(text: str) -> bool:
    """Return whether a template uses the partition key of the DAG run."""
    return KEY_ASKED_FOR.search(text) is not None
