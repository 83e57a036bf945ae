"""MaintenanceOperator: whatever of compaction, Z-order and retention a table is due for."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_opal.operators.upkeep import (
    Span,
    UpkeepOperator,
    at_least,
    cluster_columns,
    codec,
    delta_span,
    percent,
    span_text,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.job import JobResult
    from opal_lake.table import Table


POLICY = (
    "zorder", "window", "look_back", "target_mb", "small_files", "dead_share", "unclustered_share", "archive_after", "archive_codec",
)  # fmt: skip


class MaintenanceOperator(UpkeepOperator):
    """Looks what is due, and does it: minor or major compaction, Z-order by `zorder`, and retention by `window`.

    What is not given the table's properties of these names say; by default they name no `zorder`, no `look_back` and no `archive_after`,
    so that nothing is clustered, no history dropped, and nothing compressed by `archive_codec` for its age. `small_files` of a partition,
    `dead_share` (percent of the rows) and `unclustered_share` (percent of the bytes) have to have gathered before a step is due.
    `delete=False` leaves retention out; with `dry_run` nothing is done, and the result tells what would be.

    Skips while the table is not there yet.
    """

    operation = "maintain"

    def __init__(
        self,
        *,
        table: str,
        zorder: Sequence[str] | None = None,
        window: Span | None = None,
        look_back: Span | int | None = None,
        target_mb: int | None = None,
        small_files: int | None = None,
        dead_share: float | None = None,
        unclustered_share: float | None = None,
        archive_after: Span | int | None = None,
        archive_codec: str | None = None,
        delete: bool = True,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        policy = {
            "zorder": zorder,
            "window": window,
            "look_back": look_back,
            "target_mb": target_mb,
            "small_files": small_files,
            "dead_share": dead_share,
            "unclustered_share": unclustered_share,
            "archive_after": archive_after,
            "archive_codec": archive_codec,
        }
        arguments = {**checked_policy(policy), "delete": delete, "dry_run": dry_run}
        super().__init__(table=table, arguments=arguments, **kwargs)

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # as OpalSparkOperator's
        """Its schedule may come round before the table's first rows do."""
        from opal_lake.errors import NotFoundError

        try:
            self.opal.table(self.table)
        except NotFoundError as error:
            raise AirflowSkipException(f"{self.table} is not there yet") from error
        return super().execute(context)

    def rehearse(self, table: "Table") -> "JobResult":
        """What is due, and why."""
        from opal_lake.maintenance import policy_of, run_maintenance

        given = {name: value for name, value in self.arguments.items() if name in POLICY}
        return run_maintenance(table, policy_of(table.snapshot_at().spec, given), {}, dry_run=True, delete=self.arguments["delete"])


def checked_policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a job that were given, as JSON holds them."""
    given = {name: value for name, value in policy.items() if value is not None}
    return {name: _checked(name, value) for name, value in given.items()}


def _checked(name: str, value: Any) -> Any:
    match name:
        case "zorder":
            return cluster_columns(name, value)
        case "look_back" | "archive_after":
            return delta_span(name, value)
        case "window":
            return span_text(name, value)
        case "target_mb" | "small_files":
            return at_least(name, value)
        case "dead_share" | "unclustered_share":
            return percent(name, value)
        case "archive_codec":
            return codec(name, value)
        case _:
            raise ValueError(f"maintenance has no {name!r}; known are {', '.join(POLICY)}")
