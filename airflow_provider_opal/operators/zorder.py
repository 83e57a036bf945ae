"""ZOrderOperator: rows with close values in some columns come into the same files."""

from typing import ClassVar

from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.zorder import ZOrder


class ZOrderOperator(WholeTableOperator):
    """A task that clusters a table's rows by 1 to 8 columns.

    Choose the columns that queries filter by. Reads then skip files whose minimum and maximum
    exclude a filter. Row ids and the visible rows stay the same. With `only_if_due` the task does
    nothing while enough of the table is clustered, and logs that.
    """

    declared = ZOrder
    defaults: ClassVar = {"only_if_due": True}  # a schedule does not know whether there is work
    left_out = ("whole",)  # `opal zorder --whole` clusters all rows once
