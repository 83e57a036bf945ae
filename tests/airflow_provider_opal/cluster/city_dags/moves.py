"""Another writer of cities.user_city, faster than its consumer.

It commits 200 batches, and emits an event for every twentieth.
"""

from datetime import datetime

from airflow.sdk import DAG, Variable, task

from airflow_provider_opal import opal_asset

VERSIONS = opal_asset("cities.user_city", versions=True)
BATCHES, AT_ONCE = 200, 20

with DAG("moves", schedule=None, start_date=datetime(2026, 11, 1)):

    @task(outlets=[VERSIONS], max_active_tis_per_dag=1)
    def move(first: int, *, outlet_events: dict) -> None:  # type: ignore[type-arg]  # Airflow's
        from moving import batch, write

        from airflow_provider_opal import OpalHook
        from airflow_provider_opal.assets import version_key

        table, seed = OpalHook().table("cities.user_city"), int(Variable.get("lake_seed"))
        versions = [
            write(table, batch(number, seed)).version for number in range(first, first + AT_ONCE)
        ]
        outlet_events[VERSIONS].add_partitions(version_key(versions[-1]))

    move.expand(first=list(range(1, BATCHES + 1, AT_ONCE)))
