"""Temporal values are the same whatever time zone the writing and the reading JVM have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = '''
import json, sys
from datetime import datetime
from pyspark.sql import SparkSession
from opal_spark import OpalTable
from opal_spark.engine.java import ensure_java

verb, folder, zone = sys.argv[1:]
ensure_java()
settings = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": f"-Duser.timezone={zone}",
    "spark.sql.session.timeZone": zone,
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
# around the changes of daylight-saving time in both zones, and where calendars were changed
MOMENTS = [
    "2026-03-08T09:59:59.999999Z",
    "2026-03-08T10:00:00Z",
    "2026-11-01T08:30:00Z",
    "2026-11-01T09:30:00Z",
    "2026-03-29T01:00:00Z",
    "2026-10-25T00:30:00Z",
    "2026-10-25T01:30:00Z",
    "1582-10-04T12:00:00Z",
    "1582-10-15T12:00:00Z",
    "1900-01-01T00:00:00Z",
    "0001-01-02T00:00:00Z",
    "9999-12-30T23:59:59.999999Z",
    "1970-01-01T00:00:00Z",
]
VALUES = ", ".join(
    f"({n}, TIMESTAMP'{m}', TIMESTAMP_NTZ'{m[:-1]}', DATE'{m[:10]}')" for n, m in enumerate(MOMENTS)
)
QUERY = f"""SELECT id, ts, ntz, day,
            named_struct('ts', ts, 'all', array(ntz, NULL), 'by', map(day, ts)) AS nested, ts AS at
            FROM VALUES {VALUES} AS t(id, ts, ntz, day)"""
SHOW = [
    "id",
    "unix_micros(ts) AS ts",
    "date_format(ntz, 'yyyy-MM-dd HH:mm:ss.SSSSSS') AS ntz",
    "CAST(day AS STRING) AS day",
    "unix_micros(nested.ts) AS nts",
    "date_format(nested.all[0], 'yyyy-MM-dd HH:mm:ss.SSSSSS') AS nntz",
    "CAST(map_keys(nested.by)[0] AS STRING) AS nday",
    "unix_micros(map_values(nested.by)[0]) AS nby",
]
for file_format in ("parquet", "orc"):
    rows = spark.sql(QUERY)
    if verb == "write":
        layout = {"keys": ["day", "ntz", "ts"], "delta": "at", "file_format": file_format}
        table = OpalTable.create(spark, f"{folder}/{file_format}", rows.schema, **layout)
        table.ingest(rows)
        table.metagen()
    else:
        table = OpalTable.for_path(spark, f"{folder}/{file_format}")
        table.ingest(
            rows
        )  # the same keys and deltas again, from another zone: each must meet its own
        table.metagen()
    found = table.read().selectExpr(*SHOW).orderBy("id").collect()
    cut = table.read(event_time="2026-11-01T09:00:00Z").count()
    ntz = table.read(where="ntz < TIMESTAMP_NTZ'1900-01-01 00:00:00'").count()
    print(json.dumps([[row.asDict() for row in found], cut, ntz]))
spark.stop()
'''


def run(verb: str, folder: Path, zone: str) -> list[str]:
    environment = os.environ | {"TZ": zone, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, verb, str(folder), zone],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip().splitlines()[-2:]


@pytest.mark.slow
def test_a_table_is_the_same_in_los_angeles_and_in_berlin(tmp_path: Path) -> None:
    written = run("write", tmp_path, "America/Los_Angeles")
    assert written[0] == written[1], "Parquet and ORC differ"
    rows, cut, old = json.loads(written[0])
    assert len(rows) == 13
    assert rows[0]["ts"] == 1_772_963_999_999_999
    assert rows[0]["ntz"] == rows[0]["nntz"] == "2026-03-08 09:59:59.999999"
    assert (cut, old) == (11, 3)
    assert run("read", tmp_path, "Europe/Berlin") == written
