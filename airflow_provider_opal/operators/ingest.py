"""IngestOperator: rows of files or of a database go into a table.

The rows are pending until the table's MetaGen, or visible immediately.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.asset_events import AssetEvents, outlets_of
from airflow_provider_opal.assets import DEFAULT_CONN_ID, distinct
from airflow_provider_opal.operators.declared import DeclaredOperator
from airflow_provider_opal.operators.spark import earlier_tokens_of
from airflow_provider_opal.secrets import secret_arguments
from airflow_provider_opal.templated import is_templated
from opal_lake.arguments.declared import declaration
from opal_lake.errors import InvalidInputError
from opal_lake.operations.create import NewTable
from opal_lake.operations.ingest import IngestSource
from opal_lake.source import Files, Jdbc, source_from_json, source_to_json

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.result import JobResult


@declaration
class CreateTable(NewTable):
    """The definition of a new table.

    `schema` has the form 'id BIGINT, at TIMESTAMP'. Without it the table gets the columns of the
    first source.
    """

    def __post_init__(self) -> None:
        NewTable.__post_init__(self)
        if self.delta in self.keys:
            raise ValueError(
                f"delta={self.delta!r} is also a key, so no row could ever replace another; "
                "name the column that holds when a row changed"
            )


class IngestOperator(DeclaredOperator):
    """A task that appends the rows of a source.

    `create` makes the table if it does not exist. If the table exists with another definition, the
    task fails with the differences. `on_bad_rows="quarantine"` ingests the good rows and puts the
    bad ones aside, up to `reject_threshold`, such as 100 or "5%". `on_empty="accept"` accepts a
    source without files or rows and changes nothing. `on_new_columns="add"` adds the source's new
    columns to the table, and "ignore" leaves them out. Consumers know the rows by the run's
    partition key, or by `partition` (a template; give the MetaGenOperator the same value).

    The rows become visible with the table's MetaGenOperator. With `metadata="inline"` this task
    makes them visible itself: it has the outlets of a MetaGenOperator, and saves one shuffle and
    one commit. A table may switch at any time; pending rows then need one more MetaGen.

    A cleared task ingests again. Rows of the earlier try that are still pending are discarded in
    the same commit. So rows that were removed from the source are gone, unless they are visible
    already. With `mode="replace"` visible rows of the partition key end as well: the source has all
    rows of the key, and no other task ingests under it.

    `business_snapshot`, such as "{{ partition_key }}", names the business snapshot of the rows.
    Instead, `business_snapshot_column` names a column that holds it for each row. A run for a
    finished business snapshot fails.

    `source` may be the output of a task that returns a path, a list of paths, {"files": ...} or
    {"jdbc": ...}. It may also be mapped over:
    `IngestOperator.partial(task_id="ingest", table="shop.orders").expand(source=paths())`.
    """

    declared = IngestSource
    defaults: ClassVar = {"on_empty": "fail"}
    # The run adds `partition_key` and `replaces`; the others are not offered to tasks
    left_out = ("deleted", "application", "positions", "partition_key", "replaces")

    def __init__(self, *, table: str, partition: str | None = None, **kwargs: Any) -> None:
        super().__init__(table=table, **kwargs)
        if partition is not None:
            self.arguments["partition_key"] = partition
        self.asset_events: AssetEvents | None = None
        self.asset = None
        if self._is_inline:
            self.asset_events = AssetEvents.known(table, self.opal_conn_id)
        if self.asset_events is not None:
            self.asset = self.asset_events.asset
        self.outlets = distinct([*outlets_of(self.asset_events), *self.outlets])

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, checked as far as they are known.

        A source that is a mapping stays one, so that the secrets in it are found.
        """
        other_arguments = dict(given)
        create, source = other_arguments.pop("create"), other_arguments.pop("source")
        if not is_templated(source) and not isinstance(source, Mapping):
            source = source_arguments(source)
        arguments = {"source": source, **super().checked(other_arguments)}
        if create is not None:
            arguments["create"] = create_arguments(create)
        return arguments

    @property
    def _is_inline(self) -> bool:
        return bool(self.arguments.get("metadata") == "inline")

    @classmethod
    def assets_of(cls, given: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
        """Return the outlets of a mapped operator."""
        if given.get("metadata") != "inline":
            return {"outlets": []}
        events = AssetEvents.known(given.get("table"), given.get("opal_conn_id", DEFAULT_CONN_ID))
        return {"outlets": outlets_of(events)}

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """Emit the asset events of an inline ingest, whose rows are visible now."""
        xcom = super().finish(context, result)
        if self._is_inline:
            from opal_lake.result import check_visible

            try:
                check_visible(result)
            except InvalidInputError as error:  # an earlier try of this DAG run was in batch mode
                raise AirflowFailException(str(error)) from error
            events = AssetEvents.of(self.table, self.opal_conn_id)
            # A table that a template names has its outlets only now
            self.outlets = distinct([*events.outlets, *self.outlets])
            key = self.arguments.get("partition_key")
            events.emit(context, xcom, [] if key is None else [key])
        return xcom

    def changes_view(self) -> bool:
        """Return whether the ingest is inline; otherwise its MetaGen changes the view."""
        return self._is_inline

    def advice(self) -> str | None:
        """Return a hint if the table does not exist and the ingest may not create it."""
        if "create" in self.arguments or self.opal.exists(self.table):
            return None
        return (
            f"the table {self.table!r} does not exist, and the ingest may not create it: "
            "add create=CreateTable(keys=['id'], delta='updated_at')"
        )

    def job_arguments(self, context: "Context") -> dict[str, Any]:
        """Return the arguments with the run's key and the tokens of earlier tries.

        The ingest replaces the pending rows of the tries before a clear. A retry has the token of
        the try before it, so its job is applied once.
        """
        key = context.get("partition_key")
        source = source_arguments(self.arguments["source"])
        secret_paths = secret_arguments(source, "source")
        if secret_paths:
            raise ValueError(
                f"{', '.join(secret_paths)} holds a secret; put the secret into an environment "
                "variable, and name the variable with password_env="
            )
        arguments = {**self.arguments, "source": source}
        if key is not None:
            arguments.setdefault("partition_key", key)
        is_mapped = context["ti"].map_index not in (None, -1)
        if is_mapped and arguments.get("mode") == "replace":
            raise AirflowFailException(
                "mode='replace' and a mapped task exclude each other, because each of the mapped "
                "tasks would end the rows of the others; give one task all paths of the key"
            )
        earlier_tokens = earlier_tokens_of(context)
        if earlier_tokens:
            arguments["replaces"] = earlier_tokens
        return arguments


def create_arguments(create: CreateTable | Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of a new table in the form of a JobSpec."""
    new_table = create if isinstance(create, CreateTable) else CreateTable(**create)
    return new_table.to_arguments()


def source_arguments(source: Any) -> dict[str, Any]:
    """Return a source in the form of a JobSpec.

    `source` is a Files or a Jdbc, a mapping of either, a path, or a list of paths. It may contain
    templates.
    """
    if isinstance(source, str | list | tuple):
        source = Files(source)
    if isinstance(source, Mapping):
        source = source_from_json(_with_kind(source))
    if not isinstance(source, Files | Jdbc):
        raise ValueError(
            f"source={source!r} is not a source; write Files('/in/*.json'), "
            "Jdbc(url=..., table=...), a path, or the output of a task that returns a path, "
            "a list of paths, {'files': ...} or {'jdbc': ...}"
        )
    return source_to_json(source)


def _with_kind(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return {"files": ...} or {"jdbc": ...}, also for a mapping of only the fields."""
    if "paths" in source:
        return {"files": source}
    if "url" in source:
        return {"jdbc": source}
    return source
