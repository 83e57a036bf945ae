"""IngestOperator: rows of files or of a database into a table, pending until its MetaGen."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_opal.operators.spark import OpalSparkOperator
from opal_lake.source import Files, Jdbc, source_to_json

if TYPE_CHECKING:
    from airflow.sdk import Context


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

    def to_arguments(self) -> dict[str, Any]:
        """For a JobSpec; what is left out says nothing."""
        found = {name: list(value) if isinstance(value, tuple | list) else value for name, value in asdict(self).items()}
        return {name: value for name, value in found.items() if value not in (None, [], {})}


class IngestOperator(OpalSparkOperator):
    """Appends the rows of a source.

    `create` makes the table if it is not there, and fails with the differences if it was made otherwise. `on_bad_rows="quarantine"` lets
    the good rows in and puts the bad ones aside; `on_empty="accept"` takes a source without files or rows for no change. Rows are visible
    after the table's MetaGenOperator. They are known to consumers by the run's partition key, or by `partition` (a template;
    give the MetaGenOperator the same).
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
        **kwargs: Any,
    ) -> None:
        if metadata != "batch":
            raise ValueError(f"metadata={metadata!r} is unknown; use 'batch', and a MetaGenOperator after the ingest")
        arguments: dict[str, Any] = {
            "source": source_to_json(source) if isinstance(source, Files | Jdbc) else dict(source),
            "on_bad_rows": on_bad_rows,
            "on_empty": on_empty,
        }
        if create is not None:
            arguments["create"] = create.to_arguments() if isinstance(create, Table) else dict(create)
        if partition is not None:
            arguments["partition_key"] = partition
        super().__init__(table=table, arguments=arguments, **kwargs)

    def job_arguments(self, context: "Context") -> dict[str, Any]:
        """With the partition key, where there is one."""
        key = context.get("partition_key")
        return {**({} if key is None else {"partition_key": key}), **self.arguments}
