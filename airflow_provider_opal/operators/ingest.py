"""IngestOperator: rows of files or of a database into a table, pending until its MetaGen or visible at once."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.operators.spark import OpalSparkOperator
from airflow_provider_opal.telling import Telling
from opal_lake.errors import InvalidInputError
from opal_lake.job import METADATA, ON_BAD_ROWS, ON_EMPTY, check_visible
from opal_lake.source import Files, Jdbc, source_to_json

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.job import JobResult

TABLE_FORMATS = ("parquet", "orc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a table is made with. Without a `schema` (as 'id BIGINT, at TIMESTAMP') its columns are those of the first source."""

    keys: Sequence[str]
    delta: str
    deletes: str | None = None
    tie_break: Sequence[str] = ()
    partition_by: Sequence[str] = ()
    file_format: str = "parquet"
    schema: str | None = None
    properties: Mapping[str, int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("keys", "tie_break", "partition_by"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name}={getattr(self, name)!r} is a text; give a list: {name}=[{getattr(self, name)!r}]")
        if self.delta in self.keys:
            raise ValueError(f"delta={self.delta!r} is also a key, so that a key never changes; name the column that says when it changed")
        if self.file_format not in TABLE_FORMATS:
            raise ValueError(f"file_format={self.file_format!r} is unknown; use one of {', '.join(TABLE_FORMATS)}")

    def to_arguments(self) -> dict[str, Any]:
        """For a JobSpec; what is left out says nothing."""
        found = {name: list(value) if isinstance(value, tuple | list) else value for name, value in asdict(self).items()}
        return {name: value for name, value in found.items() if value not in (None, [], {})}


class IngestOperator(OpalSparkOperator):
    """Appends the rows of a source.

    `create` makes the table if it is not there, and fails with the differences if it was made otherwise. `on_bad_rows="quarantine"` lets
    the good rows in and puts the bad ones aside; `on_empty="accept"` takes a source without files or rows for no change. They are known to
    consumers by the run's partition key, or by `partition` (a template; give the MetaGenOperator the same).

    Rows are visible after the table's MetaGenOperator. With `metadata="inline"` they are by this task, which then needs no MetaGen and has
    a MetaGenOperator's outlets: one shuffle and one commit less. A table may switch at any time; what is pending then waits for one more
    MetaGen. An operator that is mapped (`expand`) has no outlets: let one after it tell.
    """

    operation = "ingest"

    def __init__(
        self,
        *,
        table: str,
        source: Files | Jdbc | Mapping[str, Any],
        create: Table | Mapping[str, Any] | None = None,
        metadata: str = "batch",
        on_bad_rows: str = "fail",
        on_empty: str = "fail",
        partition: str | None = None,
        outlets: Any = None,
        **kwargs: Any,
    ) -> None:
        given = (("metadata", metadata, METADATA), ("on_bad_rows", on_bad_rows, ON_BAD_ROWS), ("on_empty", on_empty, ON_EMPTY))
        for name, value, known in given:
            if value not in known:
                raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(known)}")
        if not isinstance(source, Files | Jdbc | Mapping):
            raise ValueError(f"source={source!r} is no source; write Files('/in/*.json') or Jdbc(url=..., table=...)")
        arguments: dict[str, Any] = {
            "source": source_to_json(source) if isinstance(source, Files | Jdbc) else dict(source),
            "metadata": metadata,
            "on_bad_rows": on_bad_rows,
            "on_empty": on_empty,
        }
        if create is not None:
            arguments["create"] = (create if isinstance(create, Table) else Table(**create)).to_arguments()
        if partition is not None:
            arguments["partition_key"] = partition
        super().__init__(table=table, arguments=arguments, **kwargs)
        self.telling = Telling.of(table, self.opal_conn_id) if metadata == "inline" else None
        self.asset = self.telling and self.telling.asset
        self.outlets = [*(self.telling.outlets if self.telling else ()), *(outlets or [])]

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """Whoever waits for the table is told when its rows are visible."""
        told = super().finish(context, result)
        if self.telling is not None:
            try:
                check_visible(result)
            except InvalidInputError as error:  # an earlier try of this run was in batch mode
                raise AirflowFailException(str(error)) from error
            self.telling.tell(context, told, self.arguments.get("partition_key"))
        return told

    def job_arguments(self, context: "Context") -> dict[str, Any]:
        """With the partition key, where there is one."""
        key = context.get("partition_key")
        return {**({} if key is None else {"partition_key": key}), **self.arguments}
