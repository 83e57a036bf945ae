"""A consumer's progress on a table.

It is stored with the table's asset or in LakeChime. The range that a DAG run works on is stored
with the DAG run.
"""

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
NEVER = -1  # instead of a version: nothing was seen or consumed


def wait_for_table(state: State) -> bool:
    """Record that a consumer waits for a table that does not exist yet.

    Returns False if this was recorded before.
    """
    if was_waited_for(state):
        return False
    state.update("waited", lambda _: True)
    return True


def was_waited_for(state: State) -> bool:
    """Return whether `wait_for_table` has recorded the consumer."""
    return state.get("waited") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The state that a check of all keys reached.

    All keys were consumed up to `version`. If that version has expired, all ingests up to `number`
    count as consumed.
    """

    version: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """One consumer's progress on one table.

    A table that was dropped and created again counts as another table.
    """

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
        """Return the watermark of a consumer; by default the task's own consumer."""
        asset = opal_asset(table, opal_conn_id=opal_conn_id)
        name = consumer or default_consumer(context)
        table_id = OpalHook(opal_conn_id).table(table).snapshot_at().root.table_id
        state = state_of(context, asset, name, lakechime_conn_id)
        return cls(context=context, asset=asset, consumer=name, table_id=table_id, state=state)

    def given(self) -> dict[str, Any] | None:
        """Return the work that an earlier try of this DAG run stored, or None.

        A try before a clear of the DAG run counts, too.
        """
        return given_to(self.context)

    def give(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """Store the versions that this try and all later tries of the DAG run work on."""
        return give_to(self.context, work)

    def seen(self, first: Callable[[], int]) -> int:
        """Return the last version that the consumer has seen.

        A new consumer begins at the version that `first` returns. This version is stored now, so
        that later versions count as new.
        """
        if self.seen_version == NEVER:
            # Before the update, which may run several times if another writer comes between
            version = first()

            def begin_at(stored: Any) -> dict[str, Any] | None:
                is_new = self._version(stored) == NEVER
                return self._at(version) if is_new else None  # None changes nothing

            self.state.update(SEEN, begin_at)
        return self.seen_version

    @property
    def seen_version(self) -> int:
        """The last version that was seen, NEVER if none was."""
        return self._version(self.state.get(SEEN))

    @property
    def begun_version(self) -> int | None:
        """The end of a range that a DAG run began and no DAG run finished, or None."""
        begun: int | None = self._own(self.state.get(SEEN)).get("begun")
        return begun

    def begin(self, version: int) -> None:
        """Record that a DAG run works on the versions up to this one."""
        self.state.update(SEEN, lambda stored: self._at(self._version(stored), begun=version))

    def advance(self, version: int, begun: int = NEVER) -> None:
        """Raise the last seen version; ignore a lower one.

        `begun` is the end of the range that the DAG run goes on with.
        """
        more = {"begun": begun} if begun > version else {}

        def raise_version(stored: Any) -> dict[str, Any] | None:
            is_lower = self._version(stored) < version
            return self._at(version, **more) if is_lower else None

        self.state.update(SEEN, raise_version)

    def consumed_version(self, partition_key: str) -> int:
        """Return the version as of which a key's rows were last consumed, or NEVER."""
        stored = self.state.get(f"consumed/{partition_key}")
        if not isinstance(stored, dict) or stored["table"] != self.table_id:
            return NEVER
        return int(stored["version"])

    def has_consumed(self, partition_key: str, ingests: int) -> bool:
        """Return whether the rows of at least `ingests` ingests of a key were consumed."""
        stored = self.state.get(f"consumed/{partition_key}")
        if not isinstance(stored, dict) or stored["table"] != self.table_id:
            return False
        return bool(stored["ingests"] >= ingests)

    def mark_consumed(self, partition_key: str, version: int, ingests: int) -> None:
        """Record that this key's rows were consumed as of a version.

        `ingests` is the number of ingests of the key that the version holds.
        """
        self.state.update(
            f"consumed/{partition_key}",
            lambda _: {"table": self.table_id, "version": version, "ingests": ingests},
        )

    @property
    def checked(self) -> "Checked | None":
        """The last check of a reconcile, None before the first one."""
        stored = self.state.get("reconciled")
        if not isinstance(stored, dict) or stored["table"] != self.table_id:
            return None
        return Checked(version=int(stored["version"]), number=int(stored["number"]))

    def check(self, checked: "Checked") -> None:
        """Replace the stored check."""
        self.state.update("reconciled", lambda _: {"table": self.table_id, **asdict(checked)})

    @property
    def redelivered(self) -> dict[str, Any]:
        """The version of each key that was emitted again, and when it was emitted."""
        stored = self.state.get("told")
        return dict(stored) if isinstance(stored, dict) else {}

    def keep_redelivered(self, redelivered: Mapping[str, Any]) -> None:
        """Replace the stored redeliveries."""
        self.state.update("told", lambda _: dict(redelivered))

    def _version(self, stored: Any) -> int:
        return int(self._own(stored).get("version", NEVER))

    def _own(self, stored: Any) -> dict[str, Any]:
        if not isinstance(stored, dict):
            return {}
        if stored["table"] != self.table_id:
            raise AirflowFailException(
                f"consumer {self.consumer!r} has seen version {stored['version']} of a table that "
                f"no longer exists: {self.asset.uri} was created again. "
                "Give the consumer another name (consumer=); it then begins at its start"
            )
        return stored

    def _at(self, version: int, **more: int) -> dict[str, Any]:
        return {"table": self.table_id, "version": version, **more}


def first_version(start: Start, opal_conn_id: str, table: str) -> int:
    """Return the version that counts as seen before a consumer's first run."""
    if start == "head":
        return OpalHook(opal_conn_id).head(table)
    if start == "all":
        return 0
    return int(start)
