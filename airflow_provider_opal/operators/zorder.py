"""ZOrderOperator: rows that are alike in some columns come to lie in the same files."""

from collections.abc import Sequence
from typing import Any

from airflow_provider_opal.operators.upkeep import UpkeepOperator, at_least, cluster_columns


class ZOrderOperator(UpkeepOperator):
    """Clusters a table's rows by 1 to 8 columns, those that queries filter by: reads then skip the files whose min and max rule them out.

    Row ids and what can be read stay as they are. With `only_if_due` it does nothing while enough of the table is clustered, and says so.
    """

    operation = "zorder"

    def __init__(
        self, *, table: str, columns: Sequence[str], target_mb: int | None = None, only_if_due: bool = True, **kwargs: Any
    ) -> None:
        arguments = {
            "columns": cluster_columns("columns", columns),
            "target_mb": at_least("target_mb", target_mb),
            "only_if_due": only_if_due,
        }
        super().__init__(table=table, arguments=arguments, **kwargs)
