"""How far a consumer has seen a table, kept in Airflow's state stores: with the table's asset, and with the run what the run was given.

What a run keeps is lost where Airflow's `[state_store] clear_on_success` is on (it is off by default): a clear is then given what is new.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from airflow_provider_opal.assets import opal_asset
from airflow_provider_opal.hooks.opal import OpalHook

if TYPE_CHECKING:
    from airflow.sdk import Context

GIVEN = "opal_given"
Start = str | int  # "head", "all", or the last version that counts as seen
NEVER = -1


def checked_start(start: Start) -> Start:
    """The start, if it is one."""
    if not (start in ("head", "all") or (isinstance(start, int) and not isinstance(start, bool) and start >= 0)):
        raise ValueError(f"start={start!r} is unknown; use 'head', 'all' or the number of the last version that counts as seen")
    return start


def default_consumer(context: "Context") -> str:
    """A consumer's name unless it has one of its own."""
    ti = context["ti"]
    return f"{ti.dag_id}.{ti.task_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """One consumer's, on one table; a table that was dropped and made anew is another one."""

    context: "Context"
    asset: Asset
    consumer: str
    table_id: str

    @classmethod
    def of(cls, context: "Context", table: str, opal_conn_id: str, consumer: str | None) -> "Watermark":
        """The task's watermark, by the consumer's name or its default."""
        asset = opal_asset(table, opal_conn_id=opal_conn_id)
        table_id = OpalHook(opal_conn_id).table(table).snapshot_at().root.table_id
        return cls(context=context, asset=asset, consumer=consumer or default_consumer(context), table_id=table_id)

    def given(self) -> dict[str, Any] | None:
        """What this run was given at an earlier try, or before it was cleared."""
        found = self.context["task_state_store"].get(GIVEN)
        return dict(found) if isinstance(found, dict) else None

    def give(self, what: Mapping[str, Any]) -> dict[str, Any]:
        """For this try and all later ones of this run."""
        fixed = dict(what)
        self.context["task_state_store"].set(GIVEN, fixed, retention=NEVER_EXPIRE)
        return fixed

    def seen(self, first: Callable[[], int]) -> int:
        """The last version that was seen; of a new consumer what `first` says, fixed now, so that what comes meanwhile is new."""
        found = self.seen_version
        if found == NEVER:
            found = first()
            self._put(self._seen_key, found)
        return found

    @property
    def seen_version(self) -> int:
        """The last version that was seen, NEVER if none was."""
        found = self._store.get(self._seen_key)
        if not isinstance(found, dict):
            return NEVER
        if found["table"] != self.table_id:
            raise AirflowFailException(
                f"consumer {self.consumer!r} has seen version {found['version']} of a table that is gone: {self.asset.uri} was made anew. "
                "Give the consumer another name (consumer=), and it begins at its start"
            )
        return int(found["version"])

    def advance(self, version: int) -> None:
        """Never back."""
        if self.seen_version < version:
            self._put(self._seen_key, version)

    def taken(self, partition_key: str) -> int:
        """The version as of which this key's rows were consumed last, NEVER if they were not."""
        found = self._store.get(self._partition(partition_key))
        return int(found["version"]) if isinstance(found, dict) and found["table"] == self.table_id else NEVER

    def take(self, partition_key: str, version: int) -> None:
        """This key's rows were consumed, as of this version."""
        self._put(self._partition(partition_key), version)

    @property
    def told(self) -> dict[str, Any]:
        """What the consumer was told again: of each key the version and when."""
        found = self._store.get(f"told/{self.consumer}")
        return dict(found) if isinstance(found, dict) else {}

    def tell(self, told: Mapping[str, Any]) -> None:
        """In place of what was told before."""
        self._store.set(f"told/{self.consumer}", dict(told))

    def _put(self, key: str, version: int) -> None:
        self._store.set(key, {"table": self.table_id, "version": version})

    @property
    def _store(self) -> Any:
        return self.context["asset_state_store"][self.asset]

    @property
    def _seen_key(self) -> str:
        return f"seen/{self.consumer}"

    def _partition(self, partition_key: str) -> str:
        return f"consumed/{self.consumer}/{partition_key}"


def first_version(start: Start, opal_conn_id: str, table: str) -> int:
    """What counts as seen before a consumer's first run."""
    if start == "head":
        return OpalHook(opal_conn_id).head(table)
    return 0 if start == "all" else int(start)
