"""RetentionApproval: asks a human whether retention may delete what a dry run listed. Airflow's ApprovalOperator with that list."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowSkipException

from opal_lake.arguments.values import Span, span_of

if TYPE_CHECKING:
    from airflow.sdk import Context

SHOWN = 20
ANSWER_WITHIN = timedelta(hours=20)


class RetentionApproval(ApprovalOperator):
    """Shows the files that a RetentionOperator's dry run, the task `listed_by`, listed. Downstream tasks run after an approval.

    A rejection, and no answer for `answer_within`, skip it: whoever waits must not keep the next run from starting. With nothing to
    delete nobody is asked. What is deleted is what retention finds when it runs; more may have come of age since it was listed.
    """

    ui_color = "#d8ecf3"

    def __init__(
        self, *, table: str, listed_by: str, answer_within: Span = ANSWER_WITHIN, **kwargs: Any
    ) -> None:
        options = {
            "response_timeout": span_of("answer_within", answer_within),
            "defaults": self.REJECT,
        }
        super().__init__(
            subject=f"Delete what no version of {table} needs any more?", **{**options, **kwargs}
        )
        self.table = table
        self.listed_by = listed_by

    def execute(self, context: "Context") -> Any:
        """Ask; Airflow resumes at the answer."""
        result = context["ti"].xcom_pull(task_ids=self.listed_by)
        if not isinstance(result, dict) or not any(result["counts"].values()):
            raise AirflowSkipException(
                f"retention has nothing to delete in {self.table}, so nobody is asked"
            )
        self.body = "\n".join(listing(result))
        return super().execute(context)


def listing(result: Mapping[str, Any]) -> Iterator[str]:
    """Markdown with the counts, and some of the files."""
    yield f"`{result['table']}`"
    yield ""
    yield from (
        f"- {name.replace('_', ' ')}: {number:,}"
        for name, number in result["counts"].items()
        if number
    )
    yield from (f"- {note}" for note in result["notes"])
    examples = list(result["examples"])[:SHOWN]
    if examples:
        yield ""
        yield "| file | bytes | why |"
        yield "|---|---|---|"
        yield from (f"| `{file['path']}` | {file['size']:,} | {file['why']} |" for file in examples)
