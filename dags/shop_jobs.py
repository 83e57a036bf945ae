"""The shop's consumers.

A function gets a `Change`: the table, and the rows of a day, whatever other days have brought
since.
"""

from pyspark.sql import functions as F

from opal_spark import Change


def revenue(change: Change) -> dict[str, int]:
    """Write the revenue of the day's orders by country.

    A repeat overwrites the day's folder.
    """
    orders = change.rows.where("status <> 'cancelled'")
    by_country = orders.groupBy("country").agg(
        F.count("*").alias("orders"), F.sum("total").alias("revenue")
    )
    folder = f"{change.arguments['to']}/day={change.partition_key}"
    by_country.coalesce(1).write.mode("overwrite").json(folder)
    return {"orders": orders.count()}
