"""The DAG that maintains the table of a pipeline. It is separate from the pipeline's DAG.

In the pipeline's own DAG, a backfill would maintain the table once for each key. A failure of the
maintenance would fail the run of a key, and a question to a human would keep the next key waiting.
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
    """The schedule and the settings of a table's maintenance.

    The defaults are the table's properties (see MaintenanceOperator). With `approve` a human sees
    a list of the files, and nothing is deleted without an approval. No answer for `answer_within`
    counts as a rejection.
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
        """The given arguments of a MaintenanceOperator."""
        return MaintenancePolicy.among(vars(self))


def maintenance_of(given: Any) -> Maintenance | None:
    """Return the Maintenance of a `maintenance=` argument, or None.

    The argument is a Maintenance or a mapping of its arguments. True stands for the defaults, None
    and False for no maintenance.
    """
    if given is None or given is False:
        return None
    if isinstance(given, Maintenance):
        return given
    if given is True:
        return Maintenance()
    known = ("schedule", *MaintenancePolicy.fields(), "approve", "answer_within")
    if not isinstance(given, Mapping):
        raise ValueError(
            f"maintenance={given!r} is not a Maintenance; "
            "write True, or Maintenance(window='30d', zorder=['customer_id'])"
        )
    unknown = sorted(set(given) - set(known))
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise ValueError(f"maintenance has no argument {names}; use one of {', '.join(known)}")
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
    """Return a DAG that maintains a table by its own schedule.

    It has one run at a time, and does not catch up missed runs. The task `maintain` does what is
    due. With `approve` it deletes nothing: `list_old_files` lists the files that retention would
    delete, `approve` shows the list to a human, and `retain` deletes them. `task` holds arguments
    of all Spark tasks: connections, retries, pool, Spark's settings.
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
    # Late: this import loads much of Airflow, which other DAG files do not need
    from airflow_provider_opal.templates.approval import RetentionApproval

    span: Any = {"window": chosen.window, "grace": chosen.grace}
    list_old_files = RetentionOperator(task_id="list_old_files", dry_run=True, **span, **given)
    approve = RetentionApproval(
        task_id="approve",
        table=maintain.table,
        listed_by=list_old_files.task_id,
        answer_within=chosen.answer_within,
        retries=0,  # an answer is final
    )
    maintain >> list_old_files >> approve >> RetentionOperator(task_id="retain", **span, **given)
