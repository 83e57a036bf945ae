"""Product data in a plain folder, merged from files after a count of what would change.

It needs the connections `opal_default` and `spark_default`, and the Variable `product_folder`, with
the folders `master` and `incr` in it. Increments are CSV without a header: id, category, brand,
price, inventory, time. Files whose names begin with `del` hold the ids of deleted products.
"""

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_opal import BulkMutationOperator

PRODUCTS = {
    "master": "{{ var.value.product_folder }}/master",
    "increments": "{{ var.value.product_folder }}/incr",
    "properties": {
        "deleted.op.code": "D",
        "deleted.record.file.prefix": "del",
        "temporal.ordering.field.ordinal": "5",
        "temporal.ordering.field.numeric": "true",
        "id.field.ordinals": "0",
    },
}

with DAG(
    "products", schedule=None, start_date=datetime(2026, 11, 1), max_active_runs=1, catchup=False
):
    count = BulkMutationOperator(task_id="count", dry_run=True, **PRODUCTS)
    merge = BulkMutationOperator(
        task_id="merge", retries=2, retry_delay=timedelta(seconds=10), **PRODUCTS
    )
    count >> merge
