"""CompactionOperator: small files of a table become fewer and larger ones."""

from typing import ClassVar

from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.compact import Compact


class CompactionOperator(WholeTableOperator):
    """A task that merges small files into files of about `target_mb`.

    The default of `target_mb` is the table's property. All rows stay readable, and no row id
    changes.

    `mode="major"` also drops rows that were not valid at any moment of the last `look_back`.
    Afterwards event times before that span can no longer be read. `look_back` is a duration
    ("30d"), or a number if the delta column holds numbers. Partitions whose rows are all older than
    `archive_after` are compressed harder.

    With `only_if_due` the table's thresholds (`small_files`, `dead_share`) decide whether to
    compact. The result gives the reason, or says that nothing is due.
    """

    declared = Compact
    defaults: ClassVar = {"only_if_due": True}  # a schedule does not know whether there is work
