"""The stores of a consumer's progress: Airflow's state store of the table's asset, or LakeChime.

Airflow's store can only get and set, and belongs to one Airflow. Several Airflows can share
LakeChime, which changes a value only if it is still the one that was read. So two consumers of one
name never move a watermark back, wherever they run. Values in LakeChime are also shown in Airflow's
store.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import Asset
from airflow.sdk.execution_time.context import AssetStateStoreAccessor

from airflow_provider_opal.hooks.lakechime import LakeChimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakechime import LakeChime

log = logging.getLogger(__name__)

# A function from the stored value (None if there is none) to the value to store (None: no change)
Change = Callable[[Any], Any]


class State(Protocol):
    """A store of values by kind, such as 'seen' or 'consumed/2026-11-01'."""

    def get(self, kind: str) -> Any: ...

    def update(self, kind: str, change: Change) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetState:
    """The state in Airflow, with the asset."""

    accessor: Any
    consumer: str

    @classmethod
    def of(cls, context: "Context", asset: Asset, consumer: str) -> "AssetState":
        try:
            accessor = context["asset_state_store"][asset]
        except KeyError:
            # The asset became an inlet only when the task ran, by a template or from a mapping
            accessor = AssetStateStoreAccessor(name=asset.name)
        return cls(accessor=accessor, consumer=consumer)

    def get(self, kind: str) -> Any:
        return self.accessor.get(self._key(kind))

    def update(self, kind: str, change: Change) -> None:
        value = change(self.get(kind))
        if value is not None:
            self.show(kind, value)

    def show(self, kind: str, value: Any) -> None:
        self.accessor.set(self._key(kind), value)

    def _key(self, kind: str) -> str:
        name, slash, rest = kind.partition("/")
        return f"{name}/{self.consumer}{slash}{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeChimeState:
    """The state in LakeChime, under the consumer's name, by the asset's URI."""

    hook: LakeChimeHook
    consumer: str
    uri: str
    mirror: AssetState | None = None
    _clients: "list[LakeChime]" = field(default_factory=list)

    @property
    def client(self) -> "LakeChime":
        if not self._clients:
            self._clients.append(self.hook.get_conn())
        return self._clients[0]

    def get(self, kind: str) -> Any:
        watermark = self.client.watermark(self.consumer, self._key(kind))
        return None if watermark is None else watermark.value

    def update(self, kind: str, change: Change) -> None:
        from lakechime import ConflictError

        while True:
            before = self.client.watermark(self.consumer, self._key(kind))
            value = change(None if before is None else before.value)
            if value is None:
                return
            revision = None if before is None else before.revision
            try:
                self.client.put_watermark(self.consumer, self._key(kind), value, expected=revision)
            except ConflictError:
                # Another process was faster: the new value depends on what it stored
                continue
            show(self.mirror, kind, value)
            return

    def _key(self, kind: str) -> str:
        return f"{self.uri}/{kind}"


def show(mirror: AssetState | None, kind: str, value: Any) -> None:
    """Show a value in Airflow's UI, or log a warning if that fails."""
    if mirror is None:
        return
    try:
        mirror.show(kind, value)
    except Exception as error:  # noqa: BLE001  # only for display: Airflow may not know the asset
        log.warning(
            "%r of consumer %s is stored in LakeChime, but Airflow cannot show it: %s",
            kind,
            mirror.consumer,
            error,
        )


def state_of(
    context: "Context", asset: Asset, consumer: str, lakechime_conn_id: str | None = None
) -> State:
    """Return the state of a consumer of one table."""
    asset_state = AssetState.of(context, asset, consumer)
    if lakechime_conn_id is None:
        return asset_state
    hook = LakeChimeHook(lakechime_conn_id)
    return LakeChimeState(hook=hook, consumer=consumer, uri=asset.uri, mirror=asset_state)
