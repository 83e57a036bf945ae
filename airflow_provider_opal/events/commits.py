"""The registration of an Opal table's commits in LakeChime, by its jobs.

The table's log is the outbox: the next job registers the commits that a job could not register.
"""

from threading import Thread
from typing import TYPE_CHECKING, Any

from airflow_provider_opal.assets import cluster_of
from airflow_provider_opal.hooks.lakechime import LakeChimeHook
from airflow_provider_opal.hooks.opal import OpalHook

if TYPE_CHECKING:
    from opal_lake.table import Table

PATIENCE_S = 10.0  # an unreachable database does not delay the job's task for longer


def register_commits(
    opal: OpalHook,
    table: str,
    lakechime_conn_id: str,
    log: Any,
    *,
    patience_s: float = PATIENCE_S,
) -> None:
    """Register the table's commits that are not registered yet.

    This never fails, and waits for at most `patience_s`. A warning reports commits that are not
    registered.
    """
    try:
        hook = LakeChimeHook(lakechime_conn_id)
        opened = opal.table(table)
        # Read here: the thread may outlive the connection to Airflow's supervisor
        address = hook.address.shown
    except Exception as error:  # noqa: BLE001  # the commit exists, and must not count as failed
        log.warning(
            "the commits of %s are not registered in LakeChime %s: %s. The next job registers them",
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
    thread.join(patience_s)
    failure = outcome[0] if outcome else f"no answer within {patience_s:.0f} s"
    if failure is not None:
        log.warning(
            "the commits of %s are not registered in LakeChime %s (%s) yet: %s. "
            "The next job registers them",
            table,
            lakechime_conn_id,
            address,
            failure,
        )


def _sync(hook: LakeChimeHook, table: "Table", name: str, cluster: str, outcome: list[Any]) -> None:
    """Register commits, and append None or the error to `outcome`."""
    try:
        from lakechime.producers.opal import sync_opal

        with hook.get_conn() as client:
            sync_opal(client, table, name, cluster=cluster)
    except BaseException as error:  # noqa: BLE001  # nobody would catch it in a thread
        outcome.append(error)
    else:
        outcome.append(None)
