"""What the shop's consumers do. A function gets a `Change`: the table, and the rows that came, whatever other days brought since."""

from pyspark.sql import functions as F

from opal_spark import Change


def revenue(change: Change) -> dict[str, int]:
    """The revenue of the day's orders by country, in a folder of the day: whoever runs it again writes it again."""
    orders = change.rows.where("status <> 'cancelled'")
    by_country = orders.groupBy("country").agg(
        F.count("*").alias("orders"), F.sum("total").alias("revenue")
    )
    by_country.coalesce(1).write.mode("overwrite").json(
        f"{change.arguments['to']}/day={change.partition_key}"
    )
    return {"orders": orders.count()}
