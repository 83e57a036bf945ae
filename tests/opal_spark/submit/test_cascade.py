"""The consumer of dags/cities.py: counts by changes equal counts of all rows.

Also if work is repeated.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.operations.job_spec import JobSpec
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, create_on
from opal_spark.submit.runner import perform
from tests.airflow_provider_opal.cluster.city_dags.moving import (
    SCHEMA,
    batch,
    counted,
    totals_of,
    write,
)
from tests.opal_lake.compacting import compact

pytestmark = pytest.mark.spark

DAGS = Path(__file__).parents[3] / "dags"
LAYOUT = TableLayout(keys=["user_id"], delta="moved_at", deletes="op = 'D'")


@pytest.fixture
def user_city(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.syspath_prepend(str(DAGS))
    return create_on(open_storage(str(tmp_path / "user_city")), plan_spec(SCHEMA, LAYOUT))


@pytest.mark.slow
def test_counts_kept_by_changes_are_those_of_all_rows_though_calls_are_repeated(
    spark: SparkSession, user_city: Table, tmp_path: Path
) -> None:
    """A call is repeated immediately, and much later.

    So do a worker that dies before it reports that the function has returned, and a clear.
    cluster/test_cascade.py continues with 200 batches, under a real scheduler.
    """
    to, ends = str(tmp_path / "city_population"), [0]

    def call(after: int, version: int) -> None:
        arguments = {
            "function": "city_jobs:count_by_city",
            "rows": "changes",
            "arguments": {"to": to},
            "after": after,
            "version": version,
        }
        perform(spark, JobSpec.of("consume", user_city.uri, arguments))

    for number in range(9):
        write(user_city, batch(number))
        if number % 3 < 2:
            continue
        compact(user_city)
        ends.append(user_city.snapshot_at().version)
        call(*ends[-2:])
        assert totals_of(Table.open(to)) == counted(user_city) != {}
    for span in (ends[-2:], ends[:2]):
        call(*span)
        assert totals_of(Table.open(to)) == counted(user_city), span
    for version in ends[1:]:
        assert totals_of(Table.open(to), event_time=version) == counted(user_city, version)
    write(
        user_city,
        [{"user_id": user, "moved_at": 1_000, "city": None, "op": "D"} for user in range(60)],
    )
    call(ends[-1], user_city.snapshot_at().version)
    assert totals_of(Table.open(to)) == {}
