"""CompactionOperator: fewer and larger files."""

from typing import ClassVar

from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.compact import Compact


class CompactionOperator(WholeTableOperator):
    """Merges small files into files of about `target_mb` (by default the table's property). All that can be read stays readable, and no
    row id changes.

    `mode="major"` also drops rows that no moment of the last `look_back` shows, and raises the table's floor to its begin: event times
    before it can no longer be read. `look_back` is a duration ("30d"); a number, where the delta column holds numbers. Partitions without
    rows of the time since `archive_after` are compressed harder.

    With `only_if_due` the table's thresholds (`small_files`, `dead_share`) decide whether it is worth it, and the result says why, or that
    it is not due.
    """

    declared = Compact
    defaults: ClassVar = {"only_if_due": True}  # a schedule comes round with or without work
