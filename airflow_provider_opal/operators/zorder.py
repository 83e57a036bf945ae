"""ZOrderOperator: clusters rows with close values in some columns into the same files."""

from typing import ClassVar

from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.zorder import ZOrder


class ZOrderOperator(WholeTableOperator):
    """Clusters a table's rows by 1 to 8 columns, those that queries filter by: reads then skip the files whose min and max rule them out.

    Row ids and what can be read stay as they are. With `only_if_due` it does nothing while enough of the table is clustered, and says so.
    """

    declared = ZOrder
    defaults: ClassVar = {"only_if_due": True}  # a schedule comes round with or without work
    left_out = ("whole",)  # `opal zorder --whole` does all once
