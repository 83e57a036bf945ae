"""RetentionApproval: asks a human whether retention may delete what a dry run has found. Airflow's ApprovalOperator with that list."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowSkipException

if TYPE_CHECKING:
    from airflow.sdk import Context

SHOWN = 20
ANSWER_WITHIN = timedelta(hours=20)


class RetentionApproval(ApprovalOperator):
    """Shows what a RetentionOperator's dry run, the task `listed_by`, has found; what comes after it runs once somebody approves.

    A rejection, and no answer for `answer_within`, skip it: whoever waits must not keep the next run from starting. With nothing to
    delete nobody is asked. What is deleted is what retention finds when it runs; more may have come of age since it was listed.
    """

    ui_color = "#d8ecf3"

    def __init__(self, *, table: str, listed_by: str, answer_within: timedelta = ANSWER_WITHIN, **kwargs: Any) -> None:
        options = {"response_timeout": answer_within, "defaults": self.REJECT}
        super().__init__(subject=f"Delete what no version of {table} needs any more?", **{**options, **kwargs})
        self.table = table
        self.listed_by = listed_by

    def execute(self, context: "Context") -> Any:
        """Ask; Airflow resumes at the answer."""
        found = context["ti"].xcom_pull(task_ids=self.listed_by)
        if not isinstance(found, dict) or not any(found["counts"].values()):
            raise AirflowSkipException(f"nothing of {self.table} can be deleted")
        self.body = "\n".join(listing(found))
        return super().execute(context)


def listing(found: Mapping[str, Any]) -> Iterator[str]:
    """Markdown: how much of what, and some of the files."""
    yield f"`{found['table']}`"
    yield ""
    yield from (f"- {name.replace('_', ' ')}: {number:,}" for name, number in found["counts"].items() if number)
    yield from (f"- {note}" for note in found["notes"])
    examples = list(found["examples"])[:SHOWN]
    if examples:
        yield ""
        yield "| file | bytes | why |"
        yield "|---|---|---|"
        yield from (f"| `{one['path']}` | {one['size']:,} | {one['why']} |" for one in examples)
