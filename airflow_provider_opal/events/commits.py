"""An Opal table's jobs register its commits in LakeChime. Its log is the outbox: what one job could not register the next one does."""

from threading import Thread
from typing import TYPE_CHECKING, Any

from airflow_provider_opal.assets import cluster_of
from airflow_provider_opal.hooks.lakechime import LakeChimeHook
from airflow_provider_opal.hooks.opal import OpalHook

if TYPE_CHECKING:
    from opal_lake.table import Table

PATIENCE_S = 10.0  # a database that is away does not hold up the job's task


def register_commits(opal: OpalHook, table: str, lakechime_conn_id: str, log: Any) -> None:
    """All that the table has committed and nobody has registered. Never fails, and never waits for long: says so, and leaves it."""
    try:
        hook, opened = LakeChimeHook(lakechime_conn_id), opal.table(table)
        said = (
            hook.address.shown
        )  # read here: a thread of ours may not outlive the talk with Airflow's supervisor
    except Exception as error:  # noqa: BLE001  # the commit is there, and must not be called failed
        log.warning(
            "%s: its commits are not registered in LakeChime %s: %s",
            table,
            lakechime_conn_id,
            error,
        )
        return
    outcome: list[Any] = []
    thread = Thread(
        target=_sync,
        args=(hook, opened, table, cluster_of(opal.opal_conn_id), outcome),
        daemon=True,
        name="register commits",
    )
    thread.start()
    thread.join(PATIENCE_S)
    failure = outcome[0] if outcome else f"no answer within {PATIENCE_S:.0f} s"
    if failure is not None:
        log.warning(
            "%s: its commits are not registered in LakeChime %s (%s) yet, the next job does it: %s",
            table,
            lakechime_conn_id,
            said,
            failure,
        )


def _sync(hook: LakeChimeHook, table: "Table", name: str, cluster: str, outcome: list[Any]) -> None:
    """Notes None, or what went wrong."""
    try:
        from lakechime.producers.opal import sync_opal

        with hook.get_conn() as client:
            sync_opal(client, table, name, cluster=cluster)
    except BaseException as error:  # noqa: BLE001  # a thread has nobody to raise it to
        outcome.append(error)
    else:
        outcome.append(None)
