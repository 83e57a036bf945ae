"""Spark's native key hashes are those of `opal_lake.definition.key_hash`, bit for bit."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.definition.key_hash import hash_keys, hashes_from_bytes
from opal_lake.definition.schema import Atomic, arrow_type, decimal_parts
from opal_lake.errors import InvalidInputError
from opal_spark.engine.key_hash import hash_slot, key_hash

pytestmark = pytest.mark.spark

ROWS = 100
BITS = {
    "byte": 8,
    "short": 16,
    "integer": 32,
    "long": 64,
    "date": 32,
    "timestamp": 64,
    "timestamp_ntz": 64,
}
DECIMALS = [
    "decimal(1,0)",
    "decimal(9,9)",
    "decimal(18,0)",
    "decimal(18,7)",
    "decimal(19,3)",
    "decimal(38,0)",
    "decimal(38,18)",
    "decimal(38,38)",
]
TYPES = [*BITS, "boolean", "string", "binary", *DECIMALS]
KEYS = [[name] for name in TYPES] + [
    ["string", "long"],
    ["long", "string"],
    ["string", "string"],
    ["binary", "string", "binary"],
    ["decimal(38,18)", "timestamp_ntz", "decimal(18,7)"],
    TYPES,
]
PHYSICAL = {"date": pa.int32(), "timestamp": pa.int64(), "timestamp_ntz": pa.int64()}
# year 1, year 9999, and a wall clock that Los Angeles skipped and one that it saw twice
MOMENTS = [
    -62_135_596_800_000_000,
    253_402_300_799_999_999,
    1_710_037_800_123_456,
    1_730_597_400_000_001,
    -1,
    -999_999,
]


def atomics(names: list[str]) -> list[Atomic]:
    return [Atomic(name=name) for name in names]


def integers(bits: int, chance: random.Random) -> list[int]:
    edges = [0, 1, -1, 10, -100, (1 << bits - 1) - 1, -(1 << bits - 1)]
    return edges + [
        chance.randrange(-(1 << bits - 1), 1 << bits - 1) >> chance.randrange(bits)
        for _ in range(ROWS)
    ]


def decimals(precision: int, scale: int, chance: random.Random) -> pa.Array:
    limit = 10**precision
    unscaled = [0, 1, -1, limit - 1, 1 - limit, limit // 10, -limit // 10]
    for _ in range(ROWS):
        cut = 10 ** chance.randrange(precision)
        unscaled.append(
            chance.choice([1, -1]) * (chance.randrange(limit) // cut) * chance.choice([1, cut])
        )
    words = b"".join(number.to_bytes(16, "little", signed=True) for number in unscaled[:ROWS])
    return pa.Array.from_buffers(pa.decimal128(precision, scale), ROWS, [None, pa.py_buffer(words)])


def column(name: str) -> pa.Array:
    chance = random.Random(name)
    if parts := decimal_parts(name):
        return decimals(*parts, chance)
    if name in BITS:
        moments = MOMENTS if name.startswith("timestamp") else []
        return pa.array((moments + integers(BITS[name], chance))[:ROWS], pa.int64()).cast(
            PHYSICAL.get(name, arrow_type(Atomic(name=name)))
        )
    if name == "boolean":
        return pa.array([chance.random() < 0.5 for _ in range(ROWS)])
    texts = ["", "0", ":", "1:a", "\0", "ü", "🦎", "x" * 70_000, "9,", "'"]
    texts += [
        "".join(chance.choices("ab0:,é🦎\0", k=chance.randrange(20)))
        for _ in range(ROWS - len(texts))
    ]
    return pa.array(
        [text.encode("utf-16" if name == "binary" else "utf-8") for text in texts], pa.binary()
    ).cast(arrow_type(Atomic(name=name)))


PHYSICAL_ROWS = pa.table({f"c{number}": column(name) for number, name in enumerate(TYPES)})
LOGICAL_ROWS = pa.table(
    [
        values.cast(arrow_type(Atomic(name=name)))
        for values, name in zip(PHYSICAL_ROWS.columns, TYPES, strict=True)
    ],
    PHYSICAL_ROWS.column_names,
)


def columns_of(key: list[str]) -> list[str]:
    return [f"c{TYPES.index(name)}" for name in key]


@pytest.fixture(scope="module", params=["parquet", "orc"])
def stored(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, DataFrame]:
    path = str(tmp_path_factory.mktemp("keys") / "rows")
    if request.param == "orc":
        pa.orc.write_table(PHYSICAL_ROWS, path)
        return "orc", spark.read.orc(path)
    pq.write_table(LOGICAL_ROWS, path)
    return "parquet", spark.read.parquet(path)


@pytest.fixture(params=[("UTC", "true"), ("America/Los_Angeles", "false")], ids="-ansi-".join)
def settings(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    names = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
    before = [spark.conf.get(name) for name in names]
    for name, value in zip(names, request.param, strict=True):
        spark.conf.set(name, value)
    yield
    for name, value in zip(names, before, strict=True):
        spark.conf.set(name, str(value))


@pytest.mark.usefixtures("settings")
def test_spark_hashes_every_type_as_python_does(stored: tuple[str, DataFrame]) -> None:
    file_format, rows = stored
    hashed = rows.select(
        *(
            key_hash(columns_of(key), atomics(key), file_format).alias(str(number))
            for number, key in enumerate(KEYS)
        )
    )
    table = hashed.toArrow()
    for number, key in enumerate(KEYS):
        expected = hash_keys([LOGICAL_ROWS[name] for name in columns_of(key)], atomics(key))
        assert np.array_equal(hashes_from_bytes(table[str(number)]), expected), key


@pytest.mark.usefixtures("settings")
def test_a_slot_is_a_contiguous_range_of_hashes(spark: SparkSession) -> None:
    rows = spark.range(500).select(key_hash(["id"], atomics(["long"]), "parquet").alias("key"))
    counts = [1 << bits for bits in range(17)]
    table = rows.select(
        "key", *(hash_slot("key", count).alias(str(count)) for count in counts)
    ).toArrow()
    high = hashes_from_bytes(table["key"])[:, 0].tolist()
    for count in counts:
        assert table[str(count)].type == pa.int32()
        assert table[str(count)].to_pylist() == [word * count >> 64 for word in high]


def test_rows_go_to_the_partition_of_their_slot(spark: SparkSession) -> None:
    keyed = spark.range(200).select(key_hash(["id"], atomics(["long"]), "parquet").alias("key"))
    slot = hash_slot("key", 8)
    placed = (
        keyed.repartitionById(8, slot)
        .select(F.spark_partition_id().alias("at"), slot.alias("slot"))
        .toArrow()
    )
    assert placed["at"].to_pylist() == placed["slot"].to_pylist()


def test_a_null_key_has_no_hash(spark: SparkSession) -> None:
    rows = spark.sql("select 1L a, cast(null as string) b").select(
        key_hash(["a", "b"], atomics(["long", "string"]), "parquet").alias("key")
    )
    with pytest.raises(InvalidInputError, match="1 of 1 key hashes are null"):
        hashes_from_bytes(rows.toArrow()["key"])


def test_bytes_that_are_not_utf8_are_hashed_unchanged(spark: SparkSession) -> None:
    keys = [b"\xff", b"\xfe", b"a\x80"]
    rows = spark.createDataFrame([(key,) for key in keys], "b binary").select(
        key_hash(["b"], atomics(["binary"]), "parquet").alias("key")
    )
    assert np.array_equal(
        hashes_from_bytes(rows.toArrow()["key"]), hash_keys([pa.array(keys)], atomics(["binary"]))
    )


@pytest.mark.parametrize("slot_count", [0, 3, -2, 1 << 17])
def test_slots_are_a_power_of_two(spark: SparkSession, slot_count: int) -> None:
    with pytest.raises(InvalidInputError, match="not a power of two"):
        hash_slot("key", slot_count)


def test_a_key_has_columns_and_their_types(spark: SparkSession) -> None:
    for columns, types in (([], []), (["a"], atomics(["long", "long"]))):
        with pytest.raises(InvalidInputError, match="one column a type"):
            key_hash(columns, types, "parquet")


CONNECT = """
import sys
from pyspark.sql import SparkSession, functions as F
from opal_lake.definition.schema import Atomic
from opal_spark.engine.key_hash import hash_slot, key_hash

spark = (
    SparkSession.builder.remote("local[1]")
    .config("spark.sql.session.timeZone", "Asia/Tokyo")
    .getOrCreate()
)
rows = spark.sql("select 'ab' a, 7L b, timestamp_ntz'2026-01-31 12:00:00' c, 0.50BD d")
types = [Atomic(name=name) for name in ("string", "long", "timestamp_ntz", "decimal(2,2)")]
hashed = rows.select(key_hash(["a", "b", "c", "d"], types, "parquet").alias("key"))
key, slot = hashed.select(F.hex("key"), hash_slot("key", 256)).first()
print("RESULT", type(spark).__module__, key.lower(), slot)
spark.stop()
"""


@pytest.mark.slow
def test_key_hashes_are_the_same_through_spark_connect(tmp_path: Path) -> None:
    """One process holds either a classic session or one of Connect."""
    pytest.importorskip("grpc")
    environment: dict[str, Any] = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", CONNECT],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    result = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    values = [
        pa.array(["ab"]),
        pa.array([7]),
        pc.strptime(["2026-01-31 12:00:00"], "%Y-%m-%d %H:%M:%S", "us"),
        pa.array(["0.5"]).cast(pa.decimal128(2, 2)),
    ]
    high, low = hash_keys(values, atomics(["string", "long", "timestamp_ntz", "decimal(2,2)"]))[
        0
    ].tolist()
    assert result == [["pyspark.sql.connect.session", f"{high:016x}{low:016x}", str(high >> 56)]], (
        done.stderr[-2000:]
    )
