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
    """Works on the whole table, and needs no partition key. It may run at any time beside ingests, MetaGens and readers.

    One that maintains files changes no rows: it has no outlets, and triggers no consumers.
    """

    note_level = logging.INFO  # notes say what is due and why

    def needs_key(self, context: "Context") -> bool:
        """Maintenance works on the whole table."""
        return False

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # as OpalSparkOperator's
        """A dry run only reads the table's state: it needs no Spark, and its repeat is harmless."""
        self.check_key(context)
        try:
            arguments = self.job_arguments(context)
        except ValueError as error:
            raise AirflowFailException(str(error)) from error  # to try again would not help
        return (
            self._dry_run(context, arguments)
            if arguments.get("dry_run")
            else super().execute(context)
        )

    def rehearse(self, table: "Table") -> "JobResult":
        """What a dry run would do."""
        raise NotImplementedError(f"{self.operation} has no dry run")

    def _dry_run(self, context: "Context", arguments: dict[str, Any]) -> dict[str, Any]:
        mask(self.opal.lake.spark_conf().items())
        self.arguments = arguments
        try:
            rehearsed = self.rehearse(self.opal.table(self.table))
        except (ValueError, NotFoundError) as error:
            raise AirflowFailException(str(error)) from error
        return self.finish(context, rehearsed)
