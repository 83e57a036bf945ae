"""How far a consumer has seen a table, kept with the table's asset or in LakeChime; what a run was given is kept with the run."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.assets import opal_asset
from airflow_provider_opal.events.runs import Start, default_consumer, give_to, given_to
from airflow_provider_opal.events.state import State, state_of
from airflow_provider_opal.hooks.opal import OpalHook

if TYPE_CHECKING:
    from airflow.sdk import Context

SEEN = "seen"
NEVER = -1


def wait_for_table(state: State) -> bool:
    """Record that a consumer exists before its table. False if that was recorded already."""
    if was_waited_for(state):
        return False
    state.update("waited", lambda _: True)
    return True


def was_waited_for(state: State) -> bool:
    """Whether it was recorded that the consumer exists before the table."""
    return state.get("waited") is not None


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
    state: State

    @classmethod
    def of(
        cls,
        context: "Context",
        table: str,
        opal_conn_id: str,
        consumer: str | None,
        lakechime_conn_id: str | None = None,
    ) -> "Watermark":
        """The task's watermark, by the consumer's name or its default."""
        asset, name = (
            opal_asset(table, opal_conn_id=opal_conn_id),
            consumer or default_consumer(context),
        )
        table_id = OpalHook(opal_conn_id).table(table).snapshot_at().root.table_id
        state = state_of(context, asset, name, lakechime_conn_id)
        return cls(context=context, asset=asset, consumer=name, table_id=table_id, state=state)

    def given(self) -> dict[str, Any] | None:
        """What this run was given at an earlier try, or before it was cleared."""
        return given_to(self.context)

    def give(self, what: Mapping[str, Any]) -> dict[str, Any]:
        """For this try and all later ones of this run."""
        return give_to(self.context, what)

    def seen(self, first: Callable[[], int]) -> int:
        """The last version that was seen. For a new consumer: what `first` returns, stored now, so that later versions count as new."""
        if self.seen_version == NEVER:
            version = first()
            self.state.update(
                SEEN, lambda stored: self._at(version) if self._version(stored) == NEVER else None
            )
        return self.seen_version

    @property
    def seen_version(self) -> int:
        """The last version that was seen, NEVER if none was."""
        return self._version(self.state.get(SEEN))

    @property
    def begun_version(self) -> int | None:
        """Where the range ends that the last run began, if no run has finished it."""
        begun: int | None = self._own(self.state.get(SEEN)).get("begun")
        return begun

    def begin(self, version: int) -> None:
        """A run works on what came after the last seen version, up to this one."""
        self.state.update(SEEN, lambda stored: self._at(self._version(stored), begun=version))

    def advance(self, version: int, begun: int = NEVER) -> None:
        """Raise the last seen version; a lower one is ignored. `begun` is where the range ends that the run goes on with."""
        more = {"begun": begun} if begun > version else {}
        self.state.update(
            SEEN,
            lambda stored: self._at(version, **more) if self._version(stored) < version else None,
        )

    def consumed_version(self, partition_key: str) -> int:
        """The version as of which this key's rows were consumed last, NEVER if they were not."""
        stored = self.state.get(f"consumed/{partition_key}")
        return (
            int(stored["version"])
            if isinstance(stored, dict) and stored["table"] == self.table_id
            else NEVER
        )

    def has_consumed(self, partition_key: str, ingests: int) -> bool:
        """Return whether this key's rows of so many ingests were consumed."""
        stored = self.state.get(f"consumed/{partition_key}")
        if not isinstance(stored, dict) or stored["table"] != self.table_id:
            return False
        return bool(stored["ingests"] >= ingests)

    def mark_consumed(self, partition_key: str, version: int, ingests: int) -> None:
        """This key's rows were consumed as of this version, which holds so many ingests of the key."""
        self.state.update(
            f"consumed/{partition_key}",
            lambda _: {"table": self.table_id, "version": version, "ingests": ingests},
        )

    @property
    def checked(self) -> "Checked | None":
        """Up to where a reconcile knows that all keys were consumed; None before the first reconcile."""
        stored = self.state.get("reconciled")
        if not isinstance(stored, dict) or stored["table"] != self.table_id:
            return None
        return Checked(version=int(stored["version"]), number=int(stored["number"]))

    def check(self, checked: "Checked") -> None:
        """Replaces the stored value."""
        self.state.update("reconciled", lambda _: {"table": self.table_id, **asdict(checked)})

    @property
    def redelivered(self) -> dict[str, Any]:
        """The versions that were emitted again: by key the version and the time."""
        stored = self.state.get("told")
        return dict(stored) if isinstance(stored, dict) else {}

    def keep_redelivered(self, redelivered: Mapping[str, Any]) -> None:
        """Replaces the stored value."""
        self.state.update("told", lambda _: dict(redelivered))

    def _version(self, stored: Any) -> int:
        return int(self._own(stored).get("version", NEVER))

    def _own(self, stored: Any) -> dict[str, Any]:
        if not isinstance(stored, dict):
            return {}
        if stored["table"] != self.table_id:
            raise AirflowFailException(
                f"consumer {self.consumer!r} has seen version {stored['version']} of a table that no longer exists: {self.asset.uri} was "
                "created again. Give the consumer another name (consumer=); it then begins at its start"
            )
        return stored

    def _at(self, version: int, **more: int) -> dict[str, Any]:
        return {"table": self.table_id, "version": version, **more}


def first_version(start: Start, opal_conn_id: str, table: str) -> int:
    """What counts as seen before a consumer's first run."""
    if start == "head":
        return OpalHook(opal_conn_id).head(table)
    return 0 if start == "all" else int(start)
