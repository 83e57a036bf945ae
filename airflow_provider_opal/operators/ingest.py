"""IngestOperator: rows of files or of a database into a table, pending until its MetaGen or visible at once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.asset_events import AssetEvents
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
    """What a table is made with. Without a `schema` (as 'id BIGINT, at TIMESTAMP') its columns are those of the first source."""

    def __post_init__(self) -> None:
        NewTable.__post_init__(self)
        if self.delta in self.keys:
            raise ValueError(
                f"delta={self.delta!r} is also a key, so no row could ever replace another; name the column that says when a row changed"
            )


class IngestOperator(DeclaredOperator):
    """Appends the rows of a source.

    `create` makes the table if it is not there, and fails with the differences if it was made otherwise. `on_bad_rows="quarantine"` lets
    the good rows in and puts the bad ones aside, as long as they are no more than `reject_threshold`, as 100 or "5%";
    `on_empty="accept"` takes a source without files or rows for no change; `on_new_columns="add"` gives the table the columns that it
    lacks, and "ignore" leaves them out. They are known to consumers by the run's partition key, or by
    `partition` (a template; give the MetaGenOperator the same).

    Rows are visible after the table's MetaGenOperator. With `metadata="inline"` they are by this task, which then needs no MetaGen and has
    a MetaGenOperator's outlets: one shuffle and one commit less. A table may switch at any time; what is pending then waits for one more
    MetaGen.

    A clear ingests again. Rows of the cleared try that are still pending, because no MetaGen has
    published them, are discarded in the same commit: what was removed from the source is gone.

    `business_snapshot`, as "{{ partition_key }}", says which one the rows belong to, or `business_snapshot_column` names the column that
    says it. They never fall: a run for one that is finished fails.

    `source` may be the output of a task that returns a path, a list of paths, or a source as {"files": ...} or {"jdbc": ...}, and be
    mapped over: `IngestOperator.partial(task_id="ingest", table="shop.orders").expand(source=paths())`.
    """

    declared = IngestSource
    defaults: ClassVar = {"on_empty": "fail"}
    # What only the run knows: `partition`, or the run's key; the tokens of earlier tries
    left_out = ("deleted", "application", "positions", "partition_key", "replaces")

    def __init__(self, *, table: str, partition: str | None = None, **kwargs: Any) -> None:
        super().__init__(table=table, **kwargs)
        if partition is not None:
            self.arguments["partition_key"] = partition
        self.asset_events = AssetEvents.known(table, self.opal_conn_id) if self._is_inline else None
        self.asset = self.asset_events and self.asset_events.asset
        self.outlets = distinct(
            [*(self.asset_events.outlets if self.asset_events else ()), *self.outlets]
        )

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check what is known by now; a source that is a mapping stays one, so that secrets show."""
        create, source = given["create"], given["source"]
        rest = {name: value for name, value in given.items() if name not in ("create", "source")}
        arguments = {
            "source": source
            if is_templated(source) or isinstance(source, Mapping)
            else source_arguments(source),
            **super().checked(rest),
        }
        if create is not None:
            made = create if isinstance(create, CreateTable) else CreateTable(**create)
            arguments["create"] = made.to_arguments()
        return arguments

    @property
    def _is_inline(self) -> bool:
        return bool(self.arguments.get("metadata") == "inline")

    @classmethod
    def assets_of(cls, given: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
        """Of a mapped one."""
        is_inline = given.get("metadata") == "inline"
        events = (
            AssetEvents.known(given.get("table"), given.get("opal_conn_id", DEFAULT_CONN_ID))
            if is_inline
            else None
        )
        return {"outlets": events.outlets if events else []}

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """Emits the asset events of an inline ingest: its rows are visible now."""
        xcom = super().finish(context, result)
        if self._is_inline:
            from opal_lake.result import check_visible

            try:
                check_visible(result)
            except InvalidInputError as error:  # an earlier try of this run was in batch mode
                raise AirflowFailException(str(error)) from error
            events = AssetEvents.of(self.table, self.opal_conn_id)
            self.outlets = distinct(
                [*events.outlets, *self.outlets]
            )  # a template has named the table by now
            key = self.arguments.get("partition_key")
            events.emit(context, xcom, [] if key is None else [key])
        return xcom

    def changes_view(self) -> bool:
        """Inline; else its MetaGen does."""
        return self._is_inline

    def advice(self) -> str | None:
        """A table that is not there is the most frequent reason to fail."""
        if "create" in self.arguments or self.opal.exists(self.table):
            return None
        return f"there is no table {self.table!r}, and the ingest may not create it: add create=CreateTable(keys=['id'], delta='updated_at')"

    def job_arguments(self, context: "Context") -> dict[str, Any]:
        """Return the arguments with the run's partition key and the tokens of earlier tries.

        After a clear, rows of an earlier try that no MetaGen has published are replaced. A retry
        has the token of the try before, and applies once.
        """
        key = context.get("partition_key")
        source = source_arguments(self.arguments["source"])
        if secret := secret_arguments(source, "source"):
            raise ValueError(
                f"{', '.join(secret)} holds a secret; put it into an environment variable, and name that: password_env="
            )
        arguments = {**self.arguments, "source": source}
        if key is not None:
            arguments.setdefault("partition_key", key)
        if earlier := earlier_tokens_of(context):
            arguments["replaces"] = earlier
        return arguments


def source_arguments(source: Any) -> dict[str, Any]:
    """A source for a JobSpec: a Files or a Jdbc, either as a mapping, a path or a list of them. Templates in it may wait for their run."""
    if isinstance(source, str | list | tuple):
        source = Files(source)
    if isinstance(source, Mapping):
        named = next(
            (kind for kind, field in (("files", "paths"), ("jdbc", "url")) if field in source), None
        )
        source = source_from_json(source if named is None else {named: source})
    if not isinstance(source, Files | Jdbc):
        raise ValueError(
            f"source={source!r} is no source; write Files('/in/*.json'), Jdbc(url=..., table=...), a path, or the output of a task "
            "that returns a path, a list of paths, {'files': ...} or {'jdbc': ...}"
        )
    return source_to_json(source)
