"""The rows that all systems get.

One process writes them as Parquet; every value follows from the key and the batch.

A table begins with the even key numbers 0, 2, 4, ... in order, as a table does whose keys grow with
time. Of a batch every second row updates a key that is there, every other one brings a new key; no
key occurs twice in a batch.

- `uniform`: updates and new keys (odd numbers) lie evenly over the whole range;
- `skewed`: new keys continue the sequence, and the r-th newest key is updated with probability
  min(1, hot/r): like Zipf's law.
"""

import math
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = "key STRING, mod_time BIGINT, v1 DOUBLE, v2 INT, c STRING"
NAMES = ("key", "mod_time", "v1", "v2", "c")
KEYS = ("uniform", "skewed")

STRIDE = 7_368_787  # a prime: its multiples, modulo the number of rows, are an even scatter
_SHIFT = 104_729
BEGAN_MS = 1_700_000_000_000
_BATCH_MS = 1_000_000_000
_ROWS_A_FILE = 2_500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch of a table that began with `base` rows and got `inserted` keys since.

    Seed 0 is the beginning itself.
    """

    base: int
    count: int
    seed: int
    keys: str
    inserted: int

    @property
    def new_keys(self) -> int:
        return self.count // 2 if self.seed else self.count


def check_batch(batch: Batch) -> None:
    """Check that the keys of a batch are distinct, and its new ones new."""
    if math.gcd(batch.base, STRIDE) != 1:
        raise ValueError(f"{batch.base:,} rows are a multiple of {STRIDE:,}; take another number")
    if batch.seed and batch.inserted + batch.new_keys > batch.base:
        raise ValueError(
            f"batch {batch.seed} would more than double a table of {batch.base:,} rows; take "
            "fewer rounds, smaller shares or more rows"
        )
    if batch.seed and batch.count - batch.new_keys > batch.base:
        raise ValueError(
            f"a batch of {batch.count:,} rows updates more keys than the {batch.base:,} there are"
        )


def batch_rows(spark: SparkSession, batch: Batch) -> DataFrame:
    check_batch(batch)
    partitions = 2 if batch.seed else max(2, math.ceil(batch.count / _ROWS_A_FILE))
    ids = spark.range(0, batch.count, 1, partitions)
    number = _key_number(batch).cast("bigint")
    return ids.select(
        number.alias("number"),
        (F.col("id") + (BEGAN_MS + batch.seed * _BATCH_MS)).alias("mod_time"),
    ).select(
        F.format_string("user-%012d", "number").alias("key"),
        "mod_time",
        (F.shiftrightunsigned(_hash(batch, 1), 11) * F.lit(2.0**-53)).alias("v1"),
        F.pmod(_hash(batch, 2), F.lit(1000)).cast("int").alias("v2"),
        F.concat(F.lit("city"), F.pmod(_hash(batch, 3), F.lit(1000)).cast("string")).alias("c"),
    )


def key_rows(spark: SparkSession, rows: int, first: int, count: int) -> DataFrame:
    """Return keys that a table of `rows` rows began with, scattered evenly.

    Ranges of numbers that do not overlap have different keys.
    """
    ids = spark.range(first, first + count, 1, 2)
    number = (F.col("id") * STRIDE % rows * 2).cast("bigint")
    return ids.select(F.format_string("user-%012d", number).alias("key"))


def key_texts(rows: int, first: int, count: int) -> list[str]:
    """Return the same keys as texts."""
    return [f"user-{number * STRIDE % rows * 2:012d}" for number in range(first, first + count)]


def _hash(batch: Batch, column: int) -> Column:
    return F.xxhash64("number", F.lit(batch.seed), F.lit(column))


def _key_number(batch: Batch) -> Column:
    id_ = F.col("id")
    if not batch.seed:
        return id_ * 2
    half = F.floor(id_ / 2)
    new = half + batch.inserted
    if batch.keys == "uniform":
        old = (half * STRIDE + batch.seed * _SHIFT) % batch.base * 2
        return F.when(id_ % 2 == 1, (new * STRIDE) % batch.base * 2 + 1).otherwise(old)
    existing = batch.base + batch.inserted
    old = (F.lit(existing - 1) - _rank(half, batch.count - batch.new_keys, existing)) * 2
    return F.when(id_ % 2 == 1, (new + batch.base) * 2).otherwise(old)


def _rank(position: Column, count: int, existing: int) -> Column:
    hot = hot_keys(count, existing)
    if hot >= count:
        return position
    slope = (count - hot) / math.log(existing / hot)
    return F.when(position < hot, position).otherwise(
        F.floor(F.lit(float(hot)) * F.exp((position - hot) / F.lit(slope)))
    )


def hot_keys(count: int, existing: int) -> int:
    """Return how many of the newest keys every batch updates.

    Then `count` of `there` keys are updated in all: hot * (1 + ln(there / hot)).

    A little more than the exact solution, so that ranks further out are more than 1 apart and no
    key is met twice.
    """
    low, high = 0.0, float(count)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if middle and middle * (1 + math.log(existing / middle)) < count
            else (low, middle)
        )
    return max(1, math.ceil(high * 1.02))
