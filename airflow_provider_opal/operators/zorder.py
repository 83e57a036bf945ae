"""ZOrderOperator: clusters rows with close values in some columns into the same files."""

from typing import Any

from airflow_provider_opal.operators.upkeep import UpkeepOperator
from opal_lake.job.operations.upkeep import ZOrder
from opal_lake.job.operations.values import ClusterColumns, MegaBytes


class ZOrderOperator(UpkeepOperator):
    """Clusters a table's rows by 1 to 8 columns, those that queries filter by: reads then skip the files whose min and max rule them out.

    Row ids and what can be read stay as they are. With `only_if_due` it does nothing while enough of the table is clustered, and says so.
    """

    declared = ZOrder
    operation = ZOrder.name

    def __init__(
        self,
        *,
        table: str,
        columns: ClusterColumns,
        target_mb: MegaBytes | None = None,
        only_if_due: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(table=table, given=locals(), **kwargs)
