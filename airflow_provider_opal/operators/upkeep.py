"""UpkeepOperator: the base of operators that work on a whole table. Arguments follow from the declarations of the operations."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.operators.spark import OpalSparkOperator
from airflow_provider_opal.secrets import mask
from airflow_provider_opal.templated import is_templated
from opal_lake.errors import NotFoundError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.job.job import JobResult
    from opal_lake.job.operations.declared import Operation
    from opal_lake.table import Table


class UpkeepOperator(OpalSparkOperator):
    """Works on the whole table, and needs no partition key. It may run at any time beside ingests, MetaGens and readers.

    One that maintains files changes no rows: it has no outlets, and triggers no consumers.
    """

    declared: ClassVar["type[Operation]"]
    note_level = logging.INFO  # notes say what is due and why

    def __init__(self, *, table: str, given: Mapping[str, Any], **kwargs: Any) -> None:
        """`given` has the arguments of the operation, and may have more: a subclass hands on all of its parameters."""
        arguments = self.declared.checked(self.declared.among(given), is_templated)
        super().__init__(table=table, arguments=arguments, **kwargs)

    def job_arguments(self, context: "Context") -> dict[str, Any]:
        """Checks the arguments that templates filled in, as the others were checked before."""
        return self.declared.checked(self.declared.filled_in(self.arguments))

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
