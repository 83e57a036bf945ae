"""Programs through Spark agree with their model, in a session and on Spark Connect.

OPAL_SPARK_PROGRAMS is their number. `python -m tests.programs.on_spark` runs 100.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.programs.on_spark import run_on_spark

SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
PROGRAMS = int(os.environ.get("OPAL_SPARK_PROGRAMS", "3"))
ROOT = Path(__file__).parents[2]


@pytest.fixture
def in_utc(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a session in UTC, in which times of texts mean the same as in the model."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", range(PROGRAMS))
def test_a_program_through_spark_agrees_with_the_model(
    in_utc: SparkSession, tmp_path: Path, number: int
) -> None:
    assert run_on_spark(in_utc, tmp_path, range(SEED + number, SEED + number + 1)) == 0


@pytest.mark.slow
@pytest.mark.spark
def test_a_program_on_spark_connect_agrees_with_the_model() -> None:
    words = [sys.executable, "-m", "tests.programs.on_spark", "--connect", "--programs", "1"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "spark_apps")])
    }
    done = subprocess.run(
        [*words, "--seed", str(SEED)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
