"""How far a consumer has seen a table, kept in Airflow's state stores: with the table's asset, and with the run what the run was given.

Airflow's `[state_store] clear_on_success` (off by default) deletes what a run keeps: a cleared run then gets the newest rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import NEVER_EXPIRE, AssetStateStoreAccessor

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


def state_of(context: "Context", asset: Asset) -> Any:
    """What is kept with an asset."""
    try:
        return context["asset_state_store"][asset]
    except KeyError:  # the task learned only when it ran, by a template or from a mapping, that this is an inlet
        return AssetStateStoreAccessor(name=asset.name)


def wait_for_table(context: "Context", asset: Asset, consumer: str) -> bool:
    """Record that a consumer exists before its table. False if that was recorded already."""
    store, key = state_of(context, asset), f"waited/{consumer}"
    if store.get(key) is not None:
        return False
    store.set(key, True)
    return True


def was_waited_for(context: "Context", asset: Asset, consumer: str) -> bool:
    """Whether it was recorded that the consumer exists before the table."""
    return state_of(context, asset).get(f"waited/{consumer}") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """All keys were consumed up to a version, and, if that has expired, all ingests up to a number."""

    version: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """One consumer's progress on one table. A table that was dropped and created again is another table."""

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
        stored = self.context["task_state_store"].get(GIVEN)
        return dict(stored) if isinstance(stored, dict) else None

    def give(self, what: Mapping[str, Any]) -> dict[str, Any]:
        """For this try and all later ones of this run."""
        fixed = dict(what)
        self.context["task_state_store"].set(GIVEN, fixed, retention=NEVER_EXPIRE)
        return fixed

    def seen(self, first: Callable[[], int]) -> int:
        """The last version that was seen. For a new consumer: what `first` returns, stored now, so that later versions count as new."""
        version = self.seen_version
        if version == NEVER:
            version = first()
            self._put(self._seen_key, version)
        return version

    @property
    def seen_version(self) -> int:
        """The last version that was seen, NEVER if none was."""
        return int(self._stored_seen().get("version", NEVER))

    @property
    def begun_version(self) -> int | None:
        """Where the range ends that the last run began, if no run has finished it."""
        return self._stored_seen().get("begun")

    def begin(self, version: int) -> None:
        """A run works on what came after the last seen version, up to this one."""
        self._put(self._seen_key, self.seen_version, begun=version)

    def advance(self, version: int, begun: int = NEVER) -> None:
        """Raise the last seen version; a lower one is ignored. `begun` is where the range ends that the run goes on with."""
        if self.seen_version < version:
            self._put(self._seen_key, version, **({"begun": begun} if begun > version else {}))

    def consumed_version(self, partition_key: str) -> int:
        """The version as of which this key's rows were consumed last, NEVER if they were not."""
        stored = self._store.get(self._partition(partition_key))
        return int(stored["version"]) if isinstance(stored, dict) and stored["table"] == self.table_id else NEVER

    def has_consumed(self, partition_key: str, ingests: int, version: int | None) -> bool:
        """Whether this key's rows of so many ingests were consumed. State without that number is compared by version."""
        stored = self._store.get(self._partition(partition_key))
        if not isinstance(stored, dict) or stored["table"] != self.table_id:
            return False
        return bool(stored["ingests"] >= ingests) if "ingests" in stored else version is not None and int(stored["version"]) >= version

    def mark_consumed(self, partition_key: str, version: int, ingests: int) -> None:
        """This key's rows were consumed as of this version, which holds so many ingests of the key."""
        self._store.set(self._partition(partition_key), {"table": self.table_id, "version": version, "ingests": ingests})

    @property
    def checked(self) -> "Checked | None":
        """Up to where a reconcile knows that all keys were consumed; None before the first reconcile."""
        stored = self._store.get(f"reconciled/{self.consumer}")
        if not isinstance(stored, dict) or stored["table"] != self.table_id:
            return None
        return Checked(version=int(stored["version"]), number=int(stored["number"]))

    def check(self, checked: "Checked") -> None:
        """Replaces the stored value."""
        self._store.set(f"reconciled/{self.consumer}", {"table": self.table_id, **asdict(checked)})

    @property
    def redelivered(self) -> dict[str, Any]:
        """The versions that were emitted again: by key the version and the time."""
        stored = self._store.get(f"told/{self.consumer}")
        return dict(stored) if isinstance(stored, dict) else {}

    def keep_redelivered(self, redelivered: Mapping[str, Any]) -> None:
        """Replaces the stored value."""
        self._store.set(f"told/{self.consumer}", dict(redelivered))

    def _stored_seen(self) -> dict[str, Any]:
        stored = self._store.get(self._seen_key)
        if not isinstance(stored, dict):
            return {}
        if stored["table"] != self.table_id:
            raise AirflowFailException(
                f"consumer {self.consumer!r} has seen version {stored['version']} of a table that no longer exists: {self.asset.uri} was "
                "created again. Give the consumer another name (consumer=); it then begins at its start"
            )
        return stored

    def _put(self, key: str, version: int, **more: int) -> None:
        self._store.set(key, {"table": self.table_id, "version": version, **more})

    @property
    def _store(self) -> Any:
        return state_of(self.context, self.asset)

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
