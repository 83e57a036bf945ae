"""How far a consumer has seen a table, kept in Airflow's state stores: with the table's asset, and with the run what the run was given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import Asset
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from airflow_provider_opal.hooks.opal import OpalHook

if TYPE_CHECKING:
    from airflow.sdk import Context

RANGE_KEY = "opal_range"
Start = str | int  # "head", "all", or the last version that counts as seen


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
    """One consumer's. What a run was given stays its own: retried or cleared, it is given the same range again."""

    context: "Context"
    asset: Asset
    consumer: str

    def seen(self, first: Callable[[], int]) -> int:
        """The last version that was seen; of a new consumer what `first` says, fixed now, so that what comes meanwhile is new."""
        found = self.taken_version()
        if found >= 0:
            return found
        begin = first()
        self._store.set(self._key, begin)
        return begin

    def advance(self, version: int) -> None:
        """Never back."""
        if self.taken_version() < version:
            self._store.set(self._key, version)

    def kept(self) -> dict[str, int] | None:
        """What this run was given before."""
        found = self.context["task_state_store"].get(RANGE_KEY)
        return cast("dict[str, int]", found) if isinstance(found, dict) else None

    def keep(self, given: Mapping[str, int]) -> dict[str, int]:
        """For all later tries of this run."""
        fixed: dict[str, Any] = {"from": int(given["from"]), "to": int(given["to"])}
        self.context["task_state_store"].set(RANGE_KEY, fixed, retention=NEVER_EXPIRE)
        return fixed

    def did_partition(self, partition_key: str, version: int) -> None:
        """The rows of this key, as of this version, were consumed."""
        self._store.set(self._partition(partition_key), version)

    def taken_partition(self, partition_key: str) -> int:
        """The version as of which this key's rows were consumed last; -1 if never."""
        found = self._store.get(self._partition(partition_key))
        return found if isinstance(found, int) else -1

    def taken_version(self, _: str = "") -> int:
        """The last version that was seen; -1 if none ever was."""
        found = self._store.get(self._key)
        return found if isinstance(found, int) else -1

    @property
    def _store(self) -> Any:
        return self.context["asset_state_store"][self.asset]

    @property
    def _key(self) -> str:
        return f"seen/{self.consumer}"

    def _partition(self, partition_key: str) -> str:
        return f"consumed/{self.consumer}/{partition_key}"


def first_version(start: Start, opal_conn_id: str, table: str) -> int:
    """What counts as seen before a consumer's first run."""
    if start == "head":
        return OpalHook(opal_conn_id).head(table)
    return 0 if start == "all" else int(start)
