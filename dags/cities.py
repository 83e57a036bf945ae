"""A table of each user's city, and one of the users in each city, made from the first's changes.

Each run reads the files of `user_city` as they are then. Trigger it by hand, or give it a schedule.
It needs the connections `opal_default` and `spark_default`, and the Variable `city_source`: the
folder of the files.
"""

from datetime import datetime, timedelta

from airflow_provider_opal import Consumer, CreateTable, Files, opal_dag

opal_dag(
    "user_city",
    table="cities.user_city",
    schedule=None,
    start_date=datetime(2026, 11, 1),
    source=Files("{{ var.value.city_source }}/user_city/*.json"),
    create=CreateTable(
        keys=["user_id"],
        delta="moved_at",
        deletes="op = 'D'",
        schema="user_id BIGINT, moved_at BIGINT, city STRING, op STRING",
    ),
    consumers=[
        Consumer(
            name="population",
            function="city_jobs:count_by_city",
            by="version",
            rows="changes",
            arguments={"to": "{{ conn.opal_default.host }}/cities/city_population"},
            # The DAG user_city.population runs once for many versions, if they come faster
            own_dag=True,
        )
    ],
    retry_delay=timedelta(seconds=10),
)
