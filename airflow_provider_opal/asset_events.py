"""The asset events by which a task that makes rows visible triggers the consumers of the table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_opal.assets import known_assets, opal_asset, version_key

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetEvents:
    """The two outlets of a table.

    Events of `asset` carry partition keys. Events of `versions` carry version numbers.
    """

    asset: "Asset"
    versions: "Asset"

    @classmethod
    def known(cls, table: Any, opal_conn_id: Any) -> Self | None:
        """Return the outlets, or None while the table or connection is a template."""
        if not known_assets({"table": table, "opal_conn_id": opal_conn_id}):
            return None
        return cls.of(table, opal_conn_id)

    @classmethod
    def of(cls, table: str, opal_conn_id: str) -> Self:
        return cls(
            asset=opal_asset(table, opal_conn_id=opal_conn_id),
            versions=opal_asset(table, opal_conn_id=opal_conn_id, versions=True),
        )

    @property
    def outlets(self) -> list["Asset"]:
        return [self.asset, self.versions]

    def emit(
        self, context: "Context", result: dict[str, Any], partition_keys: Sequence[str]
    ) -> None:
        """Emit an event for each partition key, and one for the version of a result.

        Without keys, Airflow gives the event of the table the key of the DAG run.
        """
        context["outlet_events"][self.asset].extra = _extra(result)
        if partition_keys:
            context["outlet_events"][self.asset].add_partitions(list(partition_keys))
        self.emit_version(context, result)

    def emit_version(self, context: "Context", result: dict[str, Any]) -> None:
        """Emit only the event of the version, and none for a partition key."""
        context["outlet_events"][self.versions].extra = _extra(result)
        context["outlet_events"][self.versions].add_partitions(version_key(result["version"]))


def _extra(result: dict[str, Any]) -> dict[str, Any]:
    return {"version": result["version"], "counts": result["counts"]}


def outlets_of(events: AssetEvents | None) -> list["Asset"]:
    """Return the outlets of a table, or none while its assets are unknown."""
    return [] if events is None else events.outlets
