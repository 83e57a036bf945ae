"""RetentionApproval: a human decides whether retention may delete the files of a dry run.

It is Airflow's ApprovalOperator with the list of these files.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowSkipException

from opal_lake.arguments.values import Span, span_of

if TYPE_CHECKING:
    from airflow.sdk import Context

MAX_FILES_SHOWN = 20
ANSWER_WITHIN = timedelta(hours=20)


class RetentionApproval(ApprovalOperator):
    """A task that asks a human whether the files of a dry run may be deleted.

    It shows the files that the task `listed_by`, a dry run of a RetentionOperator, has listed.
    Downstream tasks run after an approval. A rejection, or no answer within `answer_within`, skips
    them: a missing answer must not keep the next run from starting. If there is nothing to delete,
    nobody is asked. After an approval, retention deletes all files that have expired by then. These
    may be more than the list has.
    """

    ui_color = "#d8ecf3"

    def __init__(
        self, *, table: str, listed_by: str, answer_within: Span = ANSWER_WITHIN, **kwargs: Any
    ) -> None:
        options = {
            "response_timeout": span_of("answer_within", answer_within),
            "defaults": self.REJECT,  # the answer after the timeout
            **kwargs,
        }
        subject = f"Delete the files that no version of {table} needs any longer?"
        super().__init__(subject=subject, **options)
        self.table = table
        self.listed_by = listed_by

    def execute(self, context: "Context") -> Any:
        """Ask the human; Airflow resumes the task at the answer."""
        result = context["ti"].xcom_pull(task_ids=self.listed_by)
        if not isinstance(result, dict) or not any(result["counts"].values()):
            raise AirflowSkipException(
                f"retention has nothing to delete in {self.table}, so the task asks nobody"
            )
        self.body = "\n".join(listing(result))
        return super().execute(context)


def listing(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines of Markdown with the counts, and some of the files."""
    yield f"`{result['table']}`"
    yield ""
    for name, number in result["counts"].items():
        if number:
            yield f"- {name.replace('_', ' ')}: {number:,}"
    for note in result["notes"]:
        yield f"- {note}"
    examples = list(result["examples"])[:MAX_FILES_SHOWN]
    if examples:
        yield ""
        yield "| file | bytes | why |"
        yield "|---|---|---|"
    for file in examples:
        yield f"| `{file['path']}` | {file['size']:,} | {file['why']} |"
