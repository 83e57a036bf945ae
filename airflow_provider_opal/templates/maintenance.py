"""The DAG that maintains a pipeline's table: a DAG of its own beside the pipeline's, as its reconcile DAG is.

No task of the pipeline's own DAG could do it: a backfill would maintain the table once a key, a failure would fail the key's run, and a human
who is asked would keep the next key waiting.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_opal.operators.maintenance import MaintenanceOperator
from airflow_provider_opal.operators.retention import RetentionOperator
from airflow_provider_opal.templated import is_templated
from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Span, span_of
from opal_lake.operations.maintain import MaintenancePolicy

ANSWER_WITHIN = timedelta(hours=20)


@declaration
class Maintenance(MaintenancePolicy):
    """When a table is looked after, and how; what is not given, the table's properties say (see MaintenanceOperator).

    With `approve` nothing is deleted before a human has seen a list of it and agreed; no answer for `answer_within` is a no.
    """

    schedule: str | None = "@daily"
    approve: bool = False
    answer_within: Span = ANSWER_WITHIN

    def __post_init__(self) -> None:
        MaintenancePolicy.checked(self.policy, is_templated)
        if not span_of("answer_within", self.answer_within) > timedelta():
            raise ValueError(f"answer_within={self.answer_within!r} is not a duration; write '20h'")

    @property
    def policy(self) -> dict[str, Any]:
        """The arguments of a MaintenanceOperator that are given."""
        return MaintenancePolicy.among(vars(self))


def maintenance_of(given: Any) -> Maintenance | None:
    """What `maintenance=` may be: a Maintenance, a mapping of its arguments, True for the defaults; None or False for none."""
    if given is None or given is False or isinstance(given, Maintenance):
        return given or None
    if given is True:
        return Maintenance()
    known = ("schedule", *MaintenancePolicy.fields(), "approve", "answer_within")
    if not isinstance(given, Mapping):
        raise ValueError(
            f"maintenance={given!r}; write True, or Maintenance(window='30d', zorder=['customer_id'])"
        )
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(
            f"maintenance has no {', '.join(map(repr, unknown))}; known are {', '.join(known)}"
        )
    return Maintenance(**given)


def maintenance_dag(
    dag_id: str,
    *,
    table: str,
    start_date: datetime | None,
    maintenance: Maintenance | Mapping[str, Any] | bool = True,
    task: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """A DAG that maintains a table by its own schedule, one run at a time, and makes up for none that it missed.

    `maintain` does what is due. With `approve` it deletes nothing: `would_go` lists what retention would delete, `approve` shows the list
    to a human, and `retain` deletes. `task` are arguments of all Spark tasks: connections, retries, pool, Spark's settings.
    """
    chosen = maintenance_of(maintenance) or Maintenance()
    common = {"tags": ["opal"], "catchup": False, "max_active_runs": 1, **dag_kwargs}
    given = {"table": table, **(task or {})}
    with DAG(dag_id, schedule=chosen.schedule, start_date=start_date, **common) as dag:
        maintain = MaintenanceOperator(
            task_id="maintain", **chosen.policy, delete=not chosen.approve, **given
        )
        if chosen.approve:
            _approved(maintain, chosen, given)
    return dag


def _approved(maintain: MaintenanceOperator, chosen: Maintenance, given: Mapping[str, Any]) -> None:
    from airflow_provider_opal.templates.approval import RetentionApproval  # loads much of Airflow

    span: Any = {"window": chosen.window, "grace": chosen.grace}
    would_go = RetentionOperator(task_id="would_go", dry_run=True, **span, **given)
    approve = RetentionApproval(
        task_id="approve",
        table=maintain.table,
        listed_by=would_go.task_id,
        answer_within=chosen.answer_within,
        retries=0,
    )
    maintain >> would_go >> approve >> RetentionOperator(task_id="retain", **span, **given)
