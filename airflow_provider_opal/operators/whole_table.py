"""WholeTableOperator: the base of operators that work on a whole table."""

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.operators.declared import DeclaredOperator
from airflow_provider_opal.secrets import mask
from opal_lake.errors import NotFoundError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.result import JobResult
    from opal_lake.table import Table


class WholeTableOperator(DeclaredOperator):
    """A task on a whole table, which needs no partition key.

    Such a task may run at any time, in parallel with ingests, MetaGens and readers. A task that
    only maintains files changes no rows: it has no outlets, and triggers no consumers.
    """

    note_level = logging.INFO  # the notes name the steps that are due, and why

    def needs_key(self, context: "Context") -> bool:
        """Return False: the task works on the whole table."""
        return False

    def execute(  # type: ignore[override]  # as the parent's
        self, context: "Context"
    ) -> dict[str, Any]:
        """Run the job. A dry run only reads the table's state, without Spark."""
        self.check_key(context)
        try:
            arguments = self.job_arguments(context)
        except ValueError as error:
            raise AirflowFailException(str(error)) from error  # a retry would not help
        if arguments.get("dry_run"):
            return self._dry_run(context, arguments)
        return super().execute(context)

    def rehearse(self, table: "Table") -> "JobResult":
        """Return the result that the job would have."""
        raise NotImplementedError(f"{self.operation} has no dry run; remove dry_run=True")

    def _dry_run(self, context: "Context", arguments: dict[str, Any]) -> dict[str, Any]:
        mask(self.opal.lake.spark_conf().items())
        self.arguments = arguments
        try:
            rehearsed = self.rehearse(self.opal.table(self.table))
        except (ValueError, NotFoundError) as error:
            raise AirflowFailException(str(error)) from error
        return self.finish(context, rehearsed)
